//! Which control groups the containers of pods have: by the names that the kubelet and the runtimes give groups, and by
//! what is mounted in a container. Reads the host's control groups and `/proc/PID/mountinfo`; never writes.
//!
//! A group counts for a container only if it belongs to one of the container's pods and a process in it has the
//! container's own directory mounted. Never names a pod's group or one above it, where other programs are.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use supervisor::fence::{Finder, FoundGroups, processes_of};
use supervisor::instance::{INSIDE, Instance};

use super::mounts::{Place, mounted_at, shown_at};
use crate::attest::cgroup;

/// Groups below each other that are looked through for pods.
const DEPTH: u32 = 12;
/// More groups than this are not looked through.
const GROUPS_MOST: u32 = 20_000;
/// Processes of a container that are looked at.
const PROCESSES_MOST: usize = 64;
/// A runtime puts a container's first process into its group before it has mounted anything: a new group is looked at
/// each time for this long, nanoseconds, and then at growing distances up to [`SELDOM_NS`].
const NEW_NS: u64 = 10_000_000_000;
const SELDOM_NS: u64 = 60_000_000_000;
/// The group that crun makes for the processes below a container's own.
const CRUN_BELOW: &str = "container";

/// Why no group of pods is found anywhere.
const NO_GROUPS: &str = "the directory of --control-groups has no control groups of version 2 (no cgroup.controllers there)";

/// A container's control group, as far as it is known.
#[derive(Debug)]
struct KnownGroup {
    /// Its directory's inode: a group that was made again under the same path is another one.
    inode: u64,
    first_ns: u64,
    next_ns: u64,
    /// What its processes have mounted where a container has its limits. A process of the container may have mounted
    /// something else there; only what is the container's own directory counts.
    places: HashSet<Place>,
}

/// The control groups of pods.
#[derive(Debug)]
pub struct PodGroups {
    root: PathBuf,
    /// By pod: the directories directly below the pod's group.
    containers: HashMap<String, Vec<PathBuf>>,
    known: HashMap<PathBuf, KnownGroup>,
    /// This process's mounts, in which the containers' directories are found.
    own_mounts: String,
    now_ns: u64,
    is_version_2: bool,
}

impl PodGroups {
    /// `root` is where the host's control groups of version 2 are mounted.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            containers: HashMap::new(),
            known: HashMap::new(),
            own_mounts: String::new(),
            now_ns: 0,
            is_version_2: false,
        }
    }

    /// Looks through the groups below `directory` for those of pods.
    fn walk(&mut self, directory: &Path, depth: u32, wanted: &HashSet<String>, left: &mut u32) {
        for group in below(directory) {
            let Some(now_left) = left.checked_sub(1) else {
                return;
            };
            *left = now_left;
            let name = group.file_name().unwrap_or_default();
            let Some(uid) = name.to_str().and_then(cgroup::pod_uid) else {
                if depth > 0 {
                    self.walk(&group, depth - 1, wanted, left);
                }
                continue;
            };
            if wanted.contains(&uid) {
                self.containers
                    .entry(uid)
                    .or_default()
                    .extend(below(&group));
            }
        }
    }

    /// Whether a process of a container's group has, or had, `own` mounted where a container has its limits.
    fn shows(&mut self, group: &Path, own: &Place) -> bool {
        let Ok(inode) = fs::metadata(group).map(|group| group.ino()) else {
            return false;
        };
        let now_ns = self.now_ns;
        let new = || KnownGroup {
            inode,
            first_ns: now_ns,
            next_ns: now_ns,
            places: HashSet::new(),
        };
        let known = self.known.entry(group.to_owned()).or_insert_with(new);
        if known.inode != inode {
            *known = new();
        }
        if !known.places.contains(own) && known.next_ns <= now_ns {
            known.next_ns = next_look(known.first_ns, now_ns);
            let pids = processes_of(&lowest(group)).into_iter();
            let mounts = pids
                .take(PROCESSES_MOST)
                .filter_map(|pid| mounts_of(&pid.to_string()));
            let places = mounts.filter_map(|mounts| mounted_at(&mounts, Path::new(INSIDE)));
            known.places = places.collect();
        }
        known.places.contains(own)
    }
}

impl Finder for PodGroups {
    fn begin(&mut self, now_ns: u64, instances: &[Instance]) {
        self.now_ns = now_ns;
        self.containers.clear();
        self.is_version_2 = self.root.join("cgroup.controllers").exists();
        let wanted: HashSet<String> = instances.iter().flat_map(pods_of).collect();
        if self.is_version_2 && !wanted.is_empty() {
            self.own_mounts = mounts_of("self").unwrap_or_default();
            let (root, mut left) = (self.root.clone(), GROUPS_MOST);
            self.walk(&root, DEPTH, &wanted, &mut left);
        }
        let containers: HashSet<&PathBuf> = self.containers.values().flatten().collect();
        self.known.retain(|group, _| containers.contains(group));
    }

    fn find(&mut self, instance: &Instance, _: &[PathBuf]) -> FoundGroups {
        if !self.is_version_2 {
            return FoundGroups::Unseen(NO_GROUPS);
        }
        let Some(own) = shown_at(&self.own_mounts, instance.path()) else {
            return FoundGroups::Gone;
        };
        let pods = pods_of(instance);
        let groups = pods.iter().filter_map(|uid| self.containers.get(uid));
        let groups: Vec<PathBuf> = groups.flatten().cloned().collect();
        let mut groups: Vec<PathBuf> = groups
            .into_iter()
            .filter(|group| self.shows(group, &own))
            .map(|group| lowest(&group))
            .collect();
        groups.sort();
        match groups.is_empty() {
            true => FoundGroups::Gone,
            false => FoundGroups::Groups(groups),
        }
    }
}

/// The uids of the pods whose containers may use this directory: its one pod, or all pods of its ResourceClaim.
fn pods_of(instance: &Instance) -> Vec<String> {
    let Ok(labels) = instance.labels() else {
        return Vec::new();
    };
    let mut pods = labels.claim.map_or_else(Vec::new, |claim| claim.pods);
    pods.push(labels.pod_uid);
    pods.retain(|uid| !uid.is_empty());
    pods.sort();
    pods.dedup();
    pods
}

/// When a group without a container of ours is looked at again.
fn next_look(first_ns: u64, now_ns: u64) -> u64 {
    let age = now_ns.saturating_sub(first_ns);
    match age < NEW_NS {
        true => now_ns,
        false => now_ns.saturating_add(age.min(SELDOM_NS)),
    }
}

/// The group in which a container's processes are: the runtime's, or the one that crun makes below it. No other group
/// below counts, because a container that may make groups could leave one that is limited.
fn lowest(group: &Path) -> PathBuf {
    let of_crun = group.join(CRUN_BELOW);
    let is_empty = processes_of(group).is_empty();
    match is_empty && of_crun.is_dir() {
        true => of_crun,
        false => group.to_owned(),
    }
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

fn mounts_of(pid: &str) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_another_container_is_looked_at_ever_more_seldom() {
        const S: u64 = 1_000_000_000;
        for (age, wait) in [(0, 0), (9, 0), (10, 10), (30, 30), (1000, 60)] {
            assert_eq!(
                next_look(5 * S, (5 + age) * S),
                (5 + age + wait) * S,
                "{age}"
            );
        }
    }

    #[test]
    fn only_the_groups_of_wanted_pods_are_found() {
        const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
        let dir = tempfile::tempdir().unwrap();
        let slice = UID.replace('-', "_");
        let systemd =
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice");
        for group in [
            format!("{systemd}/cri-containerd-aaa.scope/nested"),
            format!("{systemd}/crio-bbb.scope/container"),
            String::from("kubepods/burstable/pod0a1b2c3d-other/ccc"),
            String::from("system.slice/kubelet.service"),
        ] {
            fs::create_dir_all(dir.path().join(group)).unwrap();
        }
        let mut groups = PodGroups::new(dir.path());

        groups.walk(
            dir.path(),
            DEPTH,
            &HashSet::from([UID.to_owned()]),
            &mut 100,
        );

        assert_eq!(groups.containers.len(), 1);
        let mut found = groups.containers.remove(UID).unwrap();
        found.sort();
        let at = |name: &str| dir.path().join(&systemd).join(name);
        assert_eq!(
            found,
            [at("cri-containerd-aaa.scope"), at("crio-bbb.scope")]
        );
        assert_eq!(lowest(&found[0]), found[0]);
        assert_eq!(lowest(&found[1]), at("crio-bbb.scope/container"));
        // A bound is kept.
        groups.walk(dir.path(), DEPTH, &HashSet::from([UID.to_owned()]), &mut 2);
        assert!(groups.containers.is_empty());
    }
}
