//! Objects, their versions and their changes. The store has no clock, no network and no rule about any kind of object.
//!
//! One counter numbers every change of every table, as in etcd. Each table remembers its last changes: a watch continues
//! from its last version, a list can be read at an earlier version, and a reader that is too far behind gets an error.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use crate::compact::Beside;
use crate::object::Stored;
use crate::resource::Resource;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was deleted.
    Deleted,
}

/// One change of one object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) happened: Happened,
    /// The object; for a deletion its last state, with the version of the deletion.
    pub(crate) object: Arc<Stored>,
    pub(crate) before: Option<Arc<Stored>>,
}

/// The state that a write expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Version(u64),
}

/// Another write came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clash;

/// The requested version is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooOld {
    pub(crate) oldest: u64,
}

/// The objects of one table, by their keys.
pub(crate) type Objects = BTreeMap<Arc<str>, Arc<Stored>>;

#[derive(Debug)]
pub(crate) struct Store {
    version: u64,
    remembered: usize,
    tables: HashMap<Arc<str>, Table>,
}

#[derive(Debug)]
struct Table {
    objects: Objects,
    changes: VecDeque<Change>,
    /// The version of the last forgotten change.
    forgotten: u64,
    bell: watch::Sender<u64>,
}

impl Table {
    fn new(forgotten: u64) -> Self {
        Self {
            objects: Objects::new(),
            changes: VecDeque::new(),
            forgotten,
            bell: watch::Sender::new(0),
        }
    }

    fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, TooOld> {
        if version < self.forgotten {
            return Err(TooOld {
                oldest: self.forgotten,
            });
        }
        let first = self
            .changes
            .partition_point(|change| change.version <= version);
        Ok(self.changes.range(first..))
    }
}

impl Store {
    /// A store whose tables each remember this many changes.
    pub(crate) fn new(remembered: usize) -> Self {
        Self {
            version: 1,
            remembered: remembered.max(1),
            tables: HashMap::new(),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, table: &str, key: &str) -> Option<Arc<Stored>> {
        self.tables.get(table)?.objects.get(key).cloned()
    }

    /// The objects whose keys begin with `prefix` and come after `after`, in order.
    pub(crate) fn scan<'a>(
        &'a self,
        table: &str,
        prefix: &'a str,
        after: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Stored>> {
        let from = if after > prefix { after } else { prefix };
        let range = (Bound::Included(from), Bound::Unbounded);
        let objects = self
            .tables
            .get(table)
            .map(|table| table.objects.range::<str, _>(range));
        objects
            .into_iter()
            .flatten()
            .skip_while(move |(key, _)| ***key == *after && !after.is_empty())
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(_, object)| object)
    }

    /// As [`Store::scan`], in the state at a version.
    pub(crate) fn scan_at(
        &self,
        table: &str,
        prefix: &str,
        after: &str,
        version: u64,
    ) -> Result<Vec<Arc<Stored>>, TooOld> {
        let now = self.scan(table, prefix, after);
        if version >= self.version {
            return Ok(now.cloned().collect());
        }
        let Some(changes) = self.tables.get(table) else {
            return Ok(Vec::new());
        };
        let mut then: BTreeMap<Arc<str>, Arc<Stored>> = now
            .map(|object| (object.key.clone(), object.clone()))
            .collect();
        let undone: Vec<_> = changes.since(version)?.collect();
        for change in undone.into_iter().rev() {
            let key = &change.object.key;
            if !key.starts_with(prefix) || (!after.is_empty() && **key <= *after) {
                continue;
            }
            match &change.before {
                Some(before) => drop(then.insert(key.clone(), before.clone())),
                None => drop(then.remove(key)),
            }
        }
        Ok(then.into_values().collect())
    }

    pub(crate) fn put(
        &mut self,
        resource: &Resource,
        key: &str,
        expect: Expect,
        object: &mut Value,
        beside: Beside,
    ) -> Result<Arc<Stored>, Clash> {
        let before = self.get(&resource.table, key);
        check(expect, before.as_ref())?;
        self.version += 1;
        let key = before
            .as_ref()
            .map_or_else(|| Arc::from(key), |before| before.key.clone());
        let stored = Arc::new(Stored::new(
            resource,
            key.clone(),
            self.version,
            object,
            beside,
        ));
        let happened = if before.is_some() {
            Happened::Modified
        } else {
            Happened::Added
        };
        self.table(resource).objects.insert(key, stored.clone());
        self.log(&resource.table, happened, stored.clone(), before);
        Ok(stored)
    }

    /// Deletes an object. `last` is its last state, without its compact annotations, which stay beside it.
    pub(crate) fn delete(
        &mut self,
        resource: &Resource,
        key: &str,
        expect: Expect,
        last: &mut Value,
    ) -> Result<Arc<Stored>, Clash> {
        let before = self.get(&resource.table, key);
        check(expect, before.as_ref())?;
        let Some(before) = before else {
            return Err(Clash);
        };
        self.version += 1;
        let stored = Arc::new(Stored::new(
            resource,
            before.key.clone(),
            self.version,
            last,
            before.beside.clone(),
        ));
        self.table(resource).objects.remove(key);
        self.log(
            &resource.table,
            Happened::Deleted,
            stored.clone(),
            Some(before),
        );
        Ok(stored)
    }

    /// The changes of a table after `version`, at most `most` of them, and the version up to which they are complete.
    pub(crate) fn changes(
        &self,
        table: &str,
        version: u64,
        most: usize,
    ) -> Result<(Vec<Change>, u64), TooOld> {
        let Some(table) = self.tables.get(table) else {
            return Ok((Vec::new(), self.version.max(version)));
        };
        let changes: Vec<Change> = table.since(version)?.take(most).cloned().collect();
        let seen = match changes.last() {
            Some(last) if changes.len() == most => last.version,
            _ => self.version.max(version),
        };
        Ok((changes, seen))
    }

    /// A separate store with the same objects, which forgets no change.
    pub(crate) fn fork(&self) -> Self {
        let tables = self.tables.iter().map(|(name, table)| {
            let mut copy = Table::new(self.version);
            copy.objects.clone_from(&table.objects);
            (name.clone(), copy)
        });
        Self {
            version: self.version,
            remembered: usize::MAX,
            tables: tables.collect(),
        }
    }

    /// The objects of every table.
    pub(crate) fn objects(&self) -> HashMap<Arc<str>, Objects> {
        let tables = self.tables.iter();
        tables
            .map(|(name, table)| (name.clone(), table.objects.clone()))
            .collect()
    }

    /// The changes since the fork, oldest first. Several changes of one object are merged into one, unless it was
    /// deleted and created again.
    pub(crate) fn net_changes(&self) -> Vec<(Arc<str>, Change)> {
        let mut all: Vec<(Arc<str>, Change)> = Vec::new();
        for (name, table) in &self.tables {
            let mut last: HashMap<Arc<str>, usize> = HashMap::new();
            for change in &table.changes {
                let earlier = last.get(&change.object.key).and_then(|at| all.get_mut(*at));
                match earlier {
                    Some((_, earlier))
                        if earlier.happened != Happened::Deleted
                            && change.happened == Happened::Modified =>
                    {
                        earlier.object = change.object.clone();
                        earlier.version = change.version;
                    }
                    _ => {
                        last.insert(change.object.key.clone(), all.len());
                        all.push((name.clone(), change.clone()));
                    }
                }
            }
        }
        all.sort_by_key(|(_, change)| change.version);
        all
    }

    /// Applies the changes of a fork that was made at `base`, all of them or none.
    pub(crate) fn take_over(
        &mut self,
        base: u64,
        end: u64,
        changes: &[(Arc<str>, Change)],
    ) -> Result<(), Clash> {
        let mut seen = HashSet::new();
        for (table, change) in changes {
            if !seen.insert((table.clone(), change.object.key.clone())) {
                continue;
            }
            let there = self.get(table, &change.object.key);
            let expected = change.before.as_ref();
            if there.map(|there| there.resource_version())
                != expected.map(|before| before.resource_version())
            {
                return Err(Clash);
            }
        }
        let untouched = self.version == base;
        for (name, change) in changes {
            let version = if untouched {
                change.version
            } else {
                self.version + 1
            };
            let object = if untouched {
                change.object.clone()
            } else {
                Arc::new(change.object.at_version(version))
            };
            self.change(name, change.happened, object, version);
        }
        if untouched {
            self.version = self.version.max(end);
        }
        Ok(())
    }

    /// Makes the objects of every table equal to those in `wanted`. Objects that differ are deleted and added again;
    /// objects that differ only in their version stay untouched. Returns the number of changed objects.
    pub(crate) fn restore(&mut self, wanted: &HashMap<Arc<str>, Objects>) -> usize {
        let none = Objects::new();
        let mut changed = 0;
        let names: Vec<Arc<str>> = self.tables.keys().chain(wanted.keys()).cloned().collect();
        let names: HashSet<Arc<str>> = names.into_iter().collect();
        let same = |a: &Arc<Stored>, b: Option<&Arc<Stored>>| {
            b.is_some_and(|b| a.resource_version() == b.resource_version() || a.same(b))
        };
        for name in &names {
            let wanted = wanted.get(name).unwrap_or(&none);
            let there = self.tables.get(name).map_or(&none, |table| &table.objects);
            let going: Vec<_> = there
                .iter()
                .filter(|(key, object)| !same(object, wanted.get(*key)))
                .map(|(_, object)| object.clone())
                .collect();
            let coming: Vec<_> = wanted
                .iter()
                .filter(|(key, object)| !same(object, there.get(*key)))
                .map(|(_, object)| object.clone())
                .collect();
            for (happened, objects) in [(Happened::Deleted, going), (Happened::Added, coming)] {
                changed += objects.len();
                for object in objects {
                    let version = self.version + 1;
                    let object = Arc::new(object.at_version(version));
                    self.change(name, happened, object, version);
                }
            }
        }
        changed
    }

    /// Stores one change of one object. `version` is the change's number, and `object` already has it as its
    /// `resourceVersion`.
    fn change(&mut self, table: &Arc<str>, happened: Happened, object: Arc<Stored>, version: u64) {
        self.version = version;
        let key = object.key.clone();
        let objects = &mut self.table_named(table).objects;
        let before = match happened {
            Happened::Deleted => objects.remove(&key),
            Happened::Added | Happened::Modified => objects.insert(key, object.clone()),
        };
        self.log(table, happened, object, before);
    }

    /// A receiver that is notified of every change of a table.
    pub(crate) fn bell(&mut self, resource: &Resource) -> watch::Receiver<u64> {
        self.table(resource).bell.subscribe()
    }

    fn table(&mut self, resource: &Resource) -> &mut Table {
        self.table_named(&resource.table)
    }

    fn table_named(&mut self, name: &Arc<str>) -> &mut Table {
        self.tables
            .entry(name.clone())
            .or_insert_with(|| Table::new(0))
    }

    fn log(
        &mut self,
        table: &Arc<str>,
        happened: Happened,
        object: Arc<Stored>,
        before: Option<Arc<Stored>>,
    ) {
        let (version, remembered) = (self.version, self.remembered);
        let table = self.table_named(table);
        table.changes.push_back(Change {
            version,
            happened,
            object,
            before,
        });
        while table.changes.len() > remembered {
            table.forgotten = table
                .changes
                .pop_front()
                .map_or(table.forgotten, |change| change.version);
        }
        table.bell.send_replace(version);
    }
}

fn check(expect: Expect, found: Option<&Arc<Stored>>) -> Result<(), Clash> {
    let right = match (expect, found) {
        (Expect::Absent, None) => true,
        (Expect::Version(version), Some(found)) => found.resource_version() == version,
        _ => false,
    };
    if right { Ok(()) } else { Err(Clash) }
}
