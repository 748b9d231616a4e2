use std::sync::Arc;

use super::*;
use crate::delivery::tests::{GIB, NodeDir, given};
use crate::delivery::{Given, Manner};

/// The present answers of both sources; an error stands for a source that cannot be asked.
#[derive(Clone)]
struct Said(Arc<Mutex<Saying>>);

struct Saying {
    in_use: Result<BTreeSet<Name>, SourceError>,
    pods: Result<Vec<LivingPod>, SourceError>,
    /// Done while they are asked.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
    /// The pods that were told that their regions cannot be cut.
    uncut: Vec<Option<String>>,
}

impl LifeSources for Said {
    async fn in_use(&self) -> Result<BTreeSet<Name>, SourceError> {
        let meanwhile = self.0.lock().meanwhile.take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.0.lock().in_use.clone()
    }

    async fn pods(&self) -> Result<Vec<LivingPod>, SourceError> {
        self.0.lock().pods.clone()
    }

    fn uncut(&self, of: Option<Labels>, _: &str) {
        self.0.lock().uncut.push(of.map(|of| of.pod));
    }
}

struct World {
    node: NodeDir,
    delivery: Arc<Delivery>,
    said: Said,
    collector: LeftoverCollector<Said>,
}

const GRACE: Duration = Duration::from_secs(30);

impl World {
    fn new(manner: Manner) -> Self {
        let node = NodeDir::new();
        let delivery = Arc::new(node.delivery(manner));
        let said = Said(Arc::new(Mutex::new(Saying {
            in_use: Ok(BTreeSet::new()),
            pods: Ok(Vec::new()),
            meanwhile: None,
            uncut: Vec::new(),
        })));
        let collector =
            LeftoverCollector::new(Arc::clone(&delivery), said.clone()).with_grace(GRACE);
        Self {
            node,
            delivery,
            said,
            collector,
        }
    }

    fn kubelet_has(&self, names: &[&Name]) {
        self.said.0.lock().in_use = Ok(names.iter().map(|name| (*name).clone()).collect());
    }

    /// Pods by name, with their numbers of containers.
    fn server_has(&self, pods: &[(&str, usize)]) {
        let pod = |(name, containers): &(&str, usize)| LivingPod {
            uid: format!("uid-{name}"),
            containers: *containers,
        };
        self.said.0.lock().pods = Ok(pods.iter().map(pod).collect());
    }

    fn give(&self, pod: &str) -> Name {
        let (name, _) = self.delivery.allot().unwrap();
        self.delivery.give(&name, &given(pod, GIB)).unwrap();
        name
    }

    /// The names that a look at this second takes away.
    fn look(&self, second: u64) -> Result<Vec<Name>, LookError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let looked = runtime.block_on(self.collector.look_at(Duration::from_secs(second)));
        looked.map(|looked| {
            assert_eq!(looked.failed, [""; 0]);
            looked.removed
        })
    }

    fn is_there(&self, name: &Name) -> bool {
        self.delivery.root().join(&name.0).exists()
    }
}

#[test]
fn directory_is_removed_after_both_sources_say_gone_for_grace() {
    let world = World::new(Manner::Cdi);
    let name = world.give("train");
    let spec = world.node.path(&format!("var/run/cdi/vgpu-{name}.json"));
    world.server_has(&[("train", 1)]);
    world.kubelet_has(&[&name]);
    assert_eq!(world.look(0), Ok(vec![]));

    // Neither alone.
    world.server_has(&[]);
    assert_eq!(world.look(100), Ok(vec![]));
    world.server_has(&[("train", 1)]);
    world.kubelet_has(&[]);
    assert_eq!(world.look(200), Ok(vec![]));
    // Both, but not for long enough, and not with a look between that failed.
    world.server_has(&[]);
    assert_eq!(world.look(300), Ok(vec![]));
    assert_eq!(world.look(329), Ok(vec![]));
    world.said.0.lock().pods = Err(SourceError::ApiServer("connection refused".into()));
    assert_eq!(
        world.look(331),
        Err(SourceError::ApiServer("connection refused".into()).into())
    );
    world.server_has(&[]);
    world.said.0.lock().in_use = Err(SourceError::Kubelet("no such socket".into()));
    assert_eq!(
        world.look(332),
        Err(SourceError::Kubelet("no such socket".into()).into())
    );
    world.kubelet_has(&[]);
    assert_eq!(world.look(340), Ok(vec![]));
    assert!(world.is_there(&name) && spec.exists());

    assert_eq!(world.look(370), Ok(vec![name.clone()]));
    assert!(!world.is_there(&name) && !spec.exists());
    assert_eq!(world.delivery.known().unwrap(), []);
}

#[test]
fn directory_stays_while_a_process_uses_its_region() {
    let world = World::new(Manner::Cdi);
    let name = world.give("train");
    let region = world.delivery.root().join(&name.0).join("region");
    let living = crate::delivery::tests::repair::lock(&region);

    world.look(0).unwrap();
    assert_eq!(world.look(100), Ok(vec![]));
    // By its pod it is gone, and what it held can be given to others.
    let other = Given {
        ..given("other", 16 * GIB)
    };
    world
        .delivery
        .give(&world.delivery.allot().unwrap().0, &other)
        .unwrap();

    drop(living);
    world.server_has(&[("other", 1)]);
    assert_eq!(world.look(101), Ok(vec![name]));
}

#[test]
fn recreated_pod_keeps_only_its_own_directory() {
    let world = World::new(Manner::Cdi);
    let old = world.give("train");
    let (new, _) = world.delivery.allot().unwrap();
    let again = Given {
        pod_uid: String::from("uid-again"),
        ..given("train", GIB)
    };
    world.delivery.give(&new, &again).unwrap();
    world.server_has(&[("again", 1)]);
    world.kubelet_has(&[&new]);

    world.look(0).unwrap();

    assert_eq!(world.look(30), Ok(vec![old]));
    assert!(world.is_there(&new));
}

#[test]
fn ungiven_allotment_stays_while_a_pod_waits() {
    let world = World::new(Manner::Mounts);
    let (waits, _) = world.delivery.allot().unwrap();
    // The kubelet names no init container; the pod's image is still on its way.
    world.server_has(&[("train", 1)]);
    for second in [0, 100] {
        assert_eq!(world.look(second), Ok(vec![]));
    }
    world.delivery.give(&waits, &given("train", GIB)).unwrap();

    // The kubelet's pod was refused after it had been allotted something.
    let (orphan, _) = world.delivery.allot().unwrap();
    assert_eq!(world.look(200), Ok(vec![]));
    assert_eq!(world.look(230), Ok(vec![orphan]));
    assert!(world.is_there(&waits));
}

#[test]
fn given_during_a_look_is_judged_by_the_next_look() {
    let world = World::new(Manner::Mounts);
    let (name, _) = world.delivery.allot().unwrap();
    world.look(0).unwrap();
    let (delivery, to) = (Arc::clone(&world.delivery), name.clone());
    world.said.0.lock().meanwhile = Some(Box::new(move || {
        delivery.give(&to, &given("train", 16 * GIB)).unwrap();
    }));

    assert_eq!(world.look(100), Ok(vec![]));

    // It counts as well: no other container gets the GPU.
    let (other, _) = world.delivery.allot().unwrap();
    assert!(world.delivery.give(&other, &given("other", GIB)).is_err());
}

#[test]
fn unreadable_directory_still_counts_its_memory() {
    let world = World::new(Manner::Cdi);
    let name = world.give("train");
    std::fs::write(
        world.delivery.root().join(&name.0).join("container.json"),
        "?",
    )
    .unwrap();
    std::fs::create_dir_all(world.node.path("var/lib/vgpu/lib/0.0.1-old")).unwrap();
    for file in ["libvgpu.so", "ld.so.preload"] {
        std::fs::write(world.node.path("var/lib/vgpu/lib/0.0.1-old").join(file), "").unwrap();
    }
    let again = Arc::new(world.node.delivery(Manner::Cdi));
    let collector =
        LeftoverCollector::new(Arc::clone(&again), world.said.clone()).with_grace(GRACE);
    let world = World {
        delivery: again,
        collector,
        ..world
    };

    let (other, _) = world.delivery.allot().unwrap();
    assert!(
        world
            .delivery
            .give(&other, &given("other", 16 * GIB))
            .is_err()
    );
    world.server_has(&[("train", 1)]);
    for second in [0, 100] {
        assert_eq!(world.look(second), Ok(vec![]));
    }
    // A container whose library is not known may use any.
    assert!(world.node.path("var/lib/vgpu/lib/0.0.1-old").exists());
    world.server_has(&[]);
    world.look(200).unwrap();
    assert_eq!(world.look(230), Ok(vec![name]));
    world.look(231).unwrap();
    assert!(!world.node.path("var/lib/vgpu/lib/0.0.1-old").exists());
}

#[test]
fn untruncatable_region_is_reported_at_each_look() {
    let world = World::new(Manner::Cdi);
    let name = world.give("train");
    world.server_has(&[("train", 1)]);
    world.kubelet_has(&[&name]);
    assert_eq!(world.look(0), Ok(vec![]));
    assert_eq!(world.said.0.lock().uncut, []);

    let path = world.delivery.root().join(&name.0);
    std::fs::rename(&path, world.node.path("aside")).unwrap();
    std::fs::write(&path, "").unwrap();

    assert_eq!(world.look(1), Ok(vec![]));
    assert_eq!(world.said.0.lock().uncut, [Some(String::from("train"))]);
}
