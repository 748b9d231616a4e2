//! A watch: the changes of a collection's objects from a version on. It reads the table's memory of its last changes, so
//! a slow reader costs nothing, and a reader that is too far behind gets an error.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use crate::check::check_fields;
use crate::cluster::Cluster;
use crate::object::Stored;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Change, Happened, TooOld};
use crate::target::Target;

/// The number of changes that are read from the store at once.
const BATCH: usize = 256;

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With all existing objects, as if each was just created, followed by the changes.
    Now,
    /// With the changes after this version.
    After(u64),
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub enum Event {
    /// An object changed.
    Object(Happened, Arc<Stored>),
    /// All objects that existed at the start have been sent; this is their version.
    Started(u64),
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    cluster: Cluster,
    resource: Arc<Resource>,
    prefix: String,
    selector: Selector,
    seen: u64,
    queue: VecDeque<Event>,
    bell: watch::Receiver<u64>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("version", &self.resource_version())
            .finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) fn new(
        cluster: Cluster,
        resource: Arc<Resource>,
        prefix: String,
        selector: Selector,
        start: Start,
    ) -> Self {
        let mut queue = VecDeque::new();
        let mut store = cluster.0.store.write();
        let bell = store.bell(&resource);
        let seen = match start {
            Start::After(version) => version,
            Start::Now => {
                let objects = store
                    .scan(&resource.table, &prefix, "")
                    .filter(|object| object.matches(&selector));
                queue.extend(objects.map(|object| Event::Object(Happened::Added, object.clone())));
                queue.push_back(Event::Started(store.version()));
                store.version()
            }
        };
        drop(store);
        Self {
            cluster,
            resource,
            prefix,
            selector,
            seen,
            queue,
            bell,
        }
    }

    /// The version up to which all changes have been sent.
    pub fn resource_version(&self) -> u64 {
        self.seen
    }

    /// The next event; 410 if the watch is too far behind. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Event, Status> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            self.bell.mark_unchanged();
            if self.read()? {
                continue;
            }
            if self.bell.changed().await.is_err() {
                return Err(Status::expired("the resource is gone"));
            }
        }
    }

    /// The next event, if one is ready.
    pub fn try_next(&mut self) -> Result<Option<Event>, Status> {
        while self.queue.is_empty() && self.read()? {}
        Ok(self.queue.pop_front())
    }

    /// Reads changes from the store; returns whether there were any.
    fn read(&mut self) -> Result<bool, Status> {
        let read = self
            .cluster
            .0
            .store
            .read()
            .changes(&self.resource.table, self.seen, BATCH);
        let (changes, seen) = read.map_err(|TooOld { oldest }| {
            Status::expired(format!(
                "too old resource version: {} ({oldest})",
                self.seen
            ))
        })?;
        self.seen = seen;
        let any = !changes.is_empty();
        for change in changes {
            let event = self.event(change);
            self.queue.extend(event);
        }
        Ok(any)
    }

    /// A change as an event of a watch that sees only selected objects.
    fn event(&self, change: Change) -> Option<Event> {
        if !change.object.key.starts_with(&self.prefix) {
            return None;
        }
        let selected = |object: &Arc<Stored>| object.matches(&self.selector);
        let was = change.before.as_ref().is_some_and(selected);
        let is = change.happened != Happened::Deleted && selected(&change.object);
        match (was, is) {
            (false, true) => Some(Event::Object(Happened::Added, change.object)),
            (true, true) => Some(Event::Object(Happened::Modified, change.object)),
            (true, false) if change.happened == Happened::Deleted => {
                Some(Event::Object(Happened::Deleted, change.object))
            }
            // The object still exists but is no longer selected: the event has its last selected state, with the
            // version of the change.
            (true, false) => change.before.map(|before| {
                let last = Stored::new(
                    &self.resource,
                    before.key.clone(),
                    change.version,
                    &mut before.bare(),
                    before.beside.clone(),
                );
                Event::Object(Happened::Deleted, Arc::new(last))
            }),
            (false, false) => None,
        }
    }
}

impl Cluster {
    /// Watches the objects of a collection, from `start` on.
    pub fn watch(
        &self,
        target: &Target,
        selector: Selector,
        start: Start,
    ) -> Result<Watch, Status> {
        check_fields(&target.resource, &selector)?;
        Ok(Watch::new(
            self.clone(),
            target.resource.clone(),
            target.prefix(),
            selector,
            start,
        ))
    }
}
