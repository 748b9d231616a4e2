//! The verdict on a process that holds a GPU: facts in, a verdict out. Never looks at anything.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::look::{Library, ProcessFacts};

/// The verdict on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It has our library, and its container's limits.
    Managed,
    /// The same, with a library that is not the newest: it is as its container was started.
    Stale,
    /// It has our library, and limits that are not its container's.
    ForeignLimits,
    /// It uses the GPU without the library.
    Unmanaged,
    /// The operator, or its being a part of the driver, exempts it.
    Exempt,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Managed,
        Self::Stale,
        Self::ForeignLimits,
        Self::Unmanaged,
        Self::Exempt,
    ];

    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Managed => "managed",
            Self::Stale => "stale",
            Self::ForeignLimits => "foreign_limits",
            Self::Unmanaged => "unmanaged",
            Self::Exempt => "exempt",
        }
    }

    /// Whether it has to be reported.
    #[must_use]
    pub fn is_bad(self) -> bool {
        matches!(self, Self::ForeignLimits | Self::Unmanaged)
    }
}

/// Why a verdict is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is not bad.
    None,
    /// Our library is not in it.
    NoLibrary,
    /// A file of our library's name is in it that was not installed here.
    ForeignLibrary,
    /// Our library is in it, and was never asked: it got at the GPU another way.
    Bypassed,
    /// It takes its limits from elsewhere.
    ForeignLimits,
    /// Its pod asked for no GPU.
    NotAsked,
    /// It is in no pod.
    Host,
    /// Only the driver knows of it: nothing of it is visible here.
    Hidden,
}

impl Reason {
    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NoLibrary => "no_library",
            Self::ForeignLibrary => "foreign_library",
            Self::Bypassed => "bypassed",
            Self::ForeignLimits => "foreign_limits",
            Self::NotAsked => "not_asked",
            Self::Host => "host",
            Self::Hidden => "hidden",
        }
    }

    /// In words, with what to do.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "it is as it should be",
            Self::NoLibrary => {
                "vgpu's library is not in it, so no limit holds (a static program, a C library that is not glibc, or \
                 /etc/ld.so.preload is not used): run a dynamic program, or give it the overlay library"
            }
            Self::ForeignLibrary => {
                "it has a libvgpu.so that was not installed on this node: take that file out of the image"
            }
            Self::Bypassed => {
                "it reached the driver past vgpu's library, so no limit holds: look at what the program does"
            }
            Self::ForeignLimits => {
                "it takes its limits from a file that is not its container's: look at mounts and namespaces that the \
                 program makes"
            }
            Self::NotAsked => {
                "its pod asked for no GPU (an image or a variable such as NVIDIA_VISIBLE_DEVICES=all gave it one): ask \
                 for nvidia.com/gpu in the pod, or exempt its namespace"
            }
            Self::Host => {
                "it runs on the node and in no pod: move it into a pod, or exempt its program"
            }
            Self::Hidden => {
                "only the driver knows of it: it runs in a namespace that is not visible from the node"
            }
        }
    }
}

/// A container that vgpu manages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedContainer {
    /// Its directory.
    pub path: PathBuf,
    /// Namespace of its pod; empty under `vgpu run`.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Uid of the pod.
    pub pod_uid: String,
    /// Its name.
    pub container: String,
    /// Uids of further pods that use its limits: those of a ResourceClaim that several pods share.
    pub sharers: BTreeSet<String>,
    /// Host pids that hold a slot of its region.
    pub slots: BTreeSet<u32>,
}

impl ManagedContainer {
    /// Whether it is the container of a pod, or one of a claim that the pod uses.
    #[must_use]
    pub fn is_of(&self, pod_uid: &str) -> bool {
        self.pod_uid == pod_uid || self.sharers.contains(pod_uid)
    }
}

/// The judge's knowledge besides a process's facts.
#[derive(Debug, Clone, Default)]
pub struct Ground {
    /// The containers, by directory.
    pub containers: HashMap<PathBuf, ManagedContainer>,
    /// Name of the newest library; empty where that is not known, and then none is stale.
    pub newest: String,
    /// Namespaces whose pods may hold GPUs as they like.
    pub exempt_namespaces: BTreeSet<String>,
    /// Programs that may do so outside of pods: names of their files.
    pub exempt_programs: BTreeSet<String>,
    /// Namespace and name of pods by uid, as the API server has them.
    pub pods: HashMap<String, (String, String)>,
}

impl Ground {
    /// Namespace and name of the pod with this uid: as the directory of its container has it, otherwise as the API server
    /// has it.
    #[must_use]
    pub fn pod<'a>(
        &'a self,
        known: Option<&'a ManagedContainer>,
        uid: &str,
    ) -> Option<(&'a str, &'a str)> {
        if let Some(known) = known.filter(|known| known.pod_uid == uid) {
            return Some((&known.namespace, &known.pod));
        }
        let (namespace, pod) = self.pods.get(uid)?;
        Some((namespace, pod))
    }
}

/// The judgement of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The managed container that it belongs to.
    pub container: Option<PathBuf>,
}

/// A GPU, or the memory that it shares with the CPU: what computing needs. `nvidiactl` alone is asked for versions.
#[must_use]
pub fn can_compute(devices: &BTreeSet<String>) -> bool {
    devices.iter().any(|name| {
        let number = name.strip_prefix("nvidia").unwrap_or(name);
        name == "nvidia-uvm" || (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Judges a process that holds a GPU. `executable` is the name of its program's file.
#[must_use]
pub fn judge(facts: &ProcessFacts, executable: &str, ground: &Ground) -> Judged {
    let container = container_of(facts, ground);
    let judged = |verdict, reason| Judged {
        verdict,
        reason,
        container: container.clone(),
    };
    let bad = |reason| {
        let verdict = match reason {
            Reason::ForeignLimits => Verdict::ForeignLimits,
            _ => Verdict::Unmanaged,
        };
        judged(verdict, reason)
    };
    let mut asked = true;
    match &facts.place {
        Some(place) => {
            let of_pod = |known: &&ManagedContainer| known.is_of(&place.pod_uid);
            let ours = ground.containers.values().find(of_pod);
            let namespace = match ours {
                Some(known) => Some(known.namespace.as_str()),
                None => ground.pods.get(&place.pod_uid).map(|(ns, _)| ns.as_str()),
            };
            // A namespace's exemption is for its pods that ask for nothing; one that has limits keeps to them.
            if ours.is_none() && namespace.is_some_and(|ns| ground.exempt_namespaces.contains(ns)) {
                return judged(Verdict::Exempt, Reason::None);
            }
            asked = ours.is_some();
        }
        // Believed only outside of pods: only the node's administrator can put a program there.
        None if ground.exempt_programs.contains(executable) => {
            return judged(Verdict::Exempt, Reason::None);
        }
        None => {}
    }
    if !asked {
        return bad(Reason::NotAsked);
    }
    let without_library = if facts.place.is_none() {
        Reason::Host
    } else {
        Reason::NoLibrary
    };
    match (&facts.library, &facts.limits) {
        (Library::None, _) => bad(without_library),
        (Library::Foreign, _) => bad(Reason::ForeignLibrary),
        (Library::Installed(_), None) if facts.other_limits || facts.region.is_some() => {
            bad(Reason::ForeignLimits)
        }
        (Library::Installed(_), None) => bad(Reason::Bypassed),
        (Library::Installed(_), Some(limits)) if !is_its_own(facts, limits, ground) => {
            bad(Reason::ForeignLimits)
        }
        (Library::Installed(version), Some(_)) => {
            let stale = !ground.newest.is_empty() && *version != ground.newest;
            let verdict = if stale {
                Verdict::Stale
            } else {
                Verdict::Managed
            };
            judged(verdict, Reason::None)
        }
    }
}

/// Whether these limits are of the pod that the process is in; outside of pods, of a run of this host's.
fn is_its_own(facts: &ProcessFacts, limits: &Path, ground: &Ground) -> bool {
    let Some(known) = ground.containers.get(limits) else {
        return false;
    };
    match &facts.place {
        // A container nested in a pod (vgpu run in a pod) is below that pod's; its limits name no pod.
        Some(place) => known.is_of(&place.pod_uid),
        None => known.pod_uid.is_empty(),
    }
}

/// The managed container that a process belongs to: by a slot that it holds, by the limits that it has mapped
/// or sees, otherwise by its pod if that has only one.
fn container_of(facts: &ProcessFacts, ground: &Ground) -> Option<PathBuf> {
    let by_slot = ground
        .containers
        .values()
        .find(|known| known.slots.contains(&facts.pid))
        .map(|known| &known.path);
    let in_pod = |path: &&PathBuf| {
        let known = ground.containers.get(*path);
        known.is_some_and(|known| match &facts.place {
            Some(place) => known.is_of(&place.pod_uid),
            None => known.pod_uid.is_empty(),
        })
    };
    let by_files = || {
        [&facts.limits, &facts.sees, &facts.region]
            .into_iter()
            .flatten()
            .find(in_pod)
    };
    let by_pod = || {
        let place = facts.place.as_ref()?;
        let mut of_pod = ground
            .containers
            .values()
            .filter(|known| known.is_of(&place.pod_uid));
        let only = of_pod.next()?;
        of_pod.next().is_none().then_some(&only.path)
    };
    by_slot
        .filter(in_pod)
        .or_else(by_files)
        .or_else(by_pod)
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attest::cgroup::PodContainer;

    const CLAIM: &str = "/var/lib/vgpu/containers/claim-u1";

    /// A claim that the pods p1 and p2 share; the driver labels its directory with the first one's name.
    fn ground() -> Ground {
        let claim = ManagedContainer {
            path: PathBuf::from(CLAIM),
            namespace: String::from("default"),
            pod: String::from("first"),
            pod_uid: String::from("p1"),
            sharers: BTreeSet::from(["p1", "p2"].map(str::to_owned)),
            ..ManagedContainer::default()
        };
        let second = (String::from("default"), String::from("second"));
        Ground {
            containers: HashMap::from([(claim.path.clone(), claim)]),
            pods: HashMap::from([(String::from("p2"), second)]),
            ..Ground::default()
        }
    }

    fn facts(pod_uid: &str, library: Library) -> ProcessFacts {
        ProcessFacts {
            pid: 7,
            place: Some(PodContainer {
                pod_uid: pod_uid.to_owned(),
                container_id: String::new(),
            }),
            library,
            limits: Some(PathBuf::from(CLAIM)),
            ..ProcessFacts::default()
        }
    }

    #[test]
    fn every_pod_of_a_shared_claim_has_asked() {
        let installed = || Library::Installed(String::from("1"));
        for pod in ["p1", "p2"] {
            let judged = judge(&facts(pod, installed()), "", &ground());
            assert_eq!(judged.verdict, Verdict::Managed, "{pod}");
            assert_eq!(judged.container, Some(PathBuf::from(CLAIM)), "{pod}");
            // It is held to the limits all the same.
            let judged = judge(&facts(pod, Library::None), "", &ground());
            assert_eq!(judged.reason, Reason::NoLibrary, "{pod}");
        }
        let judged = judge(&facts("p3", installed()), "", &ground());
        assert_eq!(judged.reason, Reason::NotAsked);
    }

    #[test]
    fn pod_of_a_shared_claim_has_its_own_name() {
        let ground = ground();
        let known = ground.containers.values().next();
        assert_eq!(ground.pod(known, "p1"), Some(("default", "first")));
        assert_eq!(ground.pod(known, "p2"), Some(("default", "second")));
        assert_eq!(ground.pod(known, "p3"), None);
    }
}
