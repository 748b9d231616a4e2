use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use expect_test::expect;
use tokio::sync::watch;
use vgpu_abi::file::FileError;
use vgpu_abi::limits::{LimitsFile, LimitsMap, Unlisted};
use vgpu_abi::targets::TargetsFile;

use super::*;
use crate::node_gpus::{Inventory, KnownGpu};

mod broken;
mod library;
pub(crate) mod repair;

pub(crate) const GIB: u64 = 1 << 30;
/// UUIDs of the node's two GPUs.
pub(crate) const GPUS: [&str; 2] = ["GPU-aaaa", "GPU-bbbb"];

/// A node in a directory: GPUs, the vendor's specification, the library of an image.
pub(crate) struct NodeDir {
    dir: tempfile::TempDir,
    gpus: watch::Sender<Option<Arc<Inventory>>>,
}

impl NodeDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Self { dir, gpus: gpus() };
        node.write_library(b"one");
        std::fs::create_dir_all(node.path("etc/cdi")).unwrap();
        std::fs::write(node.path("etc/cdi/nvidia.yaml"), VENDOR).unwrap();
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn settings(&self, manner: Manner) -> DeliverySettings {
        settings(self.dir.path(), manner, self.gpus.subscribe())
    }

    pub(crate) fn delivery(&self, manner: Manner) -> Delivery {
        Delivery::new(self.settings(manner)).unwrap()
    }

    /// The smallest library that the loader would map, with something of its own at the end.
    pub(crate) fn write_library(&self, end: &[u8]) {
        std::fs::create_dir_all(self.path("image")).unwrap();
        std::fs::write(self.path("image/libvgpu.so"), elf(end)).unwrap();
    }

    fn container(&self, name: &Name, file: &str) -> PathBuf {
        self.path("var/lib/vgpu/containers")
            .join(&name.0)
            .join(file)
    }

    fn spec(&self, name: &Name) -> PathBuf {
        self.path(&format!("var/run/cdi/vgpu-{name}.json"))
    }

    fn libraries(&self) -> Vec<String> {
        files::names(&self.path("var/lib/vgpu/lib")).unwrap()
    }

    fn limits(&self, name: &Name) -> Limits {
        LimitsMap::open(&self.container(name, "limits"))
            .unwrap()
            .load()
            .map(|limits| Limits::from(&limits))
            .unwrap()
    }
}

/// The node's GPUs, as they are read.
pub(crate) fn gpus() -> watch::Sender<Option<Arc<Inventory>>> {
    watch::Sender::new(Some(Arc::new(inventory(1))))
}

pub(crate) fn settings(root: &Path, manner: Manner, gpus: Inventories) -> DeliverySettings {
    DeliverySettings {
        host_prefix: root.to_owned(),
        library: root.join("image/libvgpu.so"),
        ..DeliverySettings::new(manner, gpus)
    }
}

fn elf(end: &[u8]) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    let mut file = vec![0; 120];
    let mut put = |offset: usize, bytes: &[u8]| {
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, b"\x7fELF\x02\x01");
    put(16, &3_u16.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &1_u16.to_le_bytes());
    put(64, &1_u32.to_le_bytes());
    put(64 + 32, &120_u64.to_le_bytes());
    file.extend_from_slice(end);
    file
}

/// Two GPUs of 16 GiB, of which `scale` times as much is promised, with three slots each.
pub(crate) fn inventory(scale: u64) -> Inventory {
    let gpu = |(index, id): (u32, &str)| KnownGpu {
        device: placement::Device {
            id: id.to_owned(),
            index,
            vendor: placement::Vendor::new("NVIDIA"),
            model: String::from("A100"),
            slots: 3,
            memory_bytes: 16 * GIB * scale,
            cores: 100,
            numa: 0,
            group: None,
            healthy: true,
            cordoned: false,
            given_out: false,
            mode: String::from("hami-core"),
            mig_profiles: Vec::new(),
            tags: Vec::new(),
            gflops: [0, 0],
            module: None,
            core_step: 0,
            appraisal: None,
        },
        physical_bytes: 16 * GIB,
        pci_bus_id: String::from("00000000:65:00.0"),
        minor: index + 4,
    };
    Inventory {
        gpus: (0..).zip(GPUS).map(gpu).collect(),
        ..Inventory::default()
    }
}

/// As `nvidia-ctk` writes it: names are numbers, and the numbers of the nodes are others.
const VENDOR: &str = r#"---
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia4
      fileMode: 438
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia5
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia4
    - path: /dev/nvidia5
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - NVIDIA_CTK=1
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache]
  mounts:
  - hostPath: /usr/lib/libcuda.so.550
    containerPath: /usr/lib/libcuda.so.550
    options: [ro, nosuid]
"#;

pub(crate) fn given(pod: &str, memory_bytes: u64) -> Given {
    Given {
        namespace: String::from("research"),
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        container: String::from("main"),
        kind: Kind::App,
        devices: vec![device(GPUS[0], memory_bytes)],
        priority: 1,
        policy: Policy::Force,
        workload: Workload::default(),
        traceparent: None,
        claim: None,
    }
}

fn device(uuid: &str, memory_bytes: u64) -> GivenDevice {
    GivenDevice {
        uuid: uuid.to_owned(),
        memory_bytes,
        physical_bytes: 16 * GIB,
        cores: 30,
        floor: 0,
        oversubscribe_bytes: 0,
        instance: None,
    }
}

fn name(text: &str) -> Name {
    Name(text.to_owned())
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The facts about a file that must not change: its identity, and the time of its last write.
fn stamp(path: &Path) -> (u64, i64, i64, u64) {
    let is = std::fs::metadata(path).unwrap();
    (is.ino(), is.mtime(), is.mtime_nsec(), is.len())
}

#[test]
fn cdi_allot_writes_nothing_and_give_writes_everything() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);

    let (name, allotted) = delivery.allot().unwrap();
    assert_eq!(allotted.cdi_devices, [format!("vgpu.io/container={name}")]);
    assert_eq!(allotted.mounts, []);
    assert!(!node.container(&name, "").exists());
    delivery.give(&name, &given("train", 4 * GIB)).unwrap();

    let limits = node.limits(&name);
    assert_eq!(
        (limits.unlisted, limits.policy, limits.priority),
        (Unlisted::Deny, Policy::Force, 1)
    );
    let [gpu] = &limits.devices[..] else {
        panic!("{limits:?}")
    };
    assert_eq!(
        (
            gpu.uuid.as_str(),
            gpu.memory_bytes,
            gpu.resident_bytes,
            gpu.core_percent,
            gpu.physical_bytes
        ),
        (GPUS[0], 4 * GIB, 0, 30, 16 * GIB)
    );
    let modes = ["", "limits", "targets", "doorbell", "region"]
        .map(|file| mode(&node.container(&name, file)));
    assert_eq!(modes, [0o755, 0o644, 0o644, 0o644, 0o666]);
    assert_eq!(
        mode(delivery.root()),
        0o700,
        "no container reaches another container's region"
    );
    let instance = supervisor::instance::Instance::open(&node.container(&name, "")).unwrap();
    let labels = instance.labels().unwrap();
    assert_eq!(
        (
            labels.pod.as_str(),
            labels.container.as_str(),
            labels.pod_uid.as_str()
        ),
        ("train", "main", "uid-train")
    );
    assert_eq!(supervisor::view::read(&instance).unwrap().devices.len(), 1);

    let spec = std::fs::read_to_string(node.spec(&name)).unwrap();
    let spec = spec
        .replace(&name.0, "NAME")
        .replace(delivery.library(), "VERSION");
    expect![[r#"
        {
          "cdiVersion": "0.6.0",
          "devices": [
            {
              "containerEdits": {
                "deviceNodes": [
                  {
                    "path": "/dev/nvidiactl"
                  },
                  {
                    "fileMode": 438,
                    "path": "/dev/nvidia4"
                  }
                ],
                "env": [
                  "NVIDIA_CTK=1",
                  "NVIDIA_VISIBLE_DEVICES=void"
                ],
                "hooks": [
                  {
                    "args": [
                      "nvidia-cdi-hook",
                      "update-ldcache"
                    ],
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook"
                  }
                ],
                "mounts": [
                  {
                    "containerPath": "/usr/lib/libcuda.so.550",
                    "hostPath": "/usr/lib/libcuda.so.550",
                    "options": [
                      "ro",
                      "nosuid"
                    ]
                  },
                  {
                    "containerPath": "/etc/vgpu",
                    "hostPath": "/var/lib/vgpu/containers/NAME",
                    "options": [
                      "ro",
                      "nosuid",
                      "nodev",
                      "noexec",
                      "rbind"
                    ]
                  },
                  {
                    "containerPath": "/run/vgpu/region",
                    "hostPath": "/var/lib/vgpu/containers/NAME/region",
                    "options": [
                      "rw",
                      "nosuid",
                      "nodev",
                      "noexec",
                      "rbind"
                    ]
                  },
                  {
                    "containerPath": "/usr/local/vgpu/libvgpu.so",
                    "hostPath": "/var/lib/vgpu/lib/VERSION/libvgpu.so",
                    "options": [
                      "ro",
                      "nosuid",
                      "nodev",
                      "rbind"
                    ]
                  },
                  {
                    "containerPath": "/etc/ld.so.preload",
                    "hostPath": "/var/lib/vgpu/lib/VERSION/ld.so.preload",
                    "options": [
                      "ro",
                      "nosuid",
                      "nodev",
                      "noexec",
                      "rbind"
                    ]
                  }
                ]
              },
              "name": "NAME"
            }
          ],
          "kind": "vgpu.io/container"
        }
    "#]]
    .assert_eq(&spec);
    let preload = format!("var/lib/vgpu/lib/{}/ld.so.preload", delivery.library());
    assert_eq!(
        std::fs::read_to_string(node.path(&preload)).unwrap(),
        "/usr/local/vgpu/libvgpu.so\n"
    );
}

#[test]
fn mounted_limits_refuse_all_until_given_in_place() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Mounts);

    let (name, allotted) = delivery.allot().unwrap();
    let mounts = allotted.mounts.iter().map(|mount| {
        assert!(
            node.path(mount.host.strip_prefix("/").unwrap().to_str().unwrap())
                .exists(),
            "{mount:?}"
        );
        (mount.container.to_str().unwrap(), mount.read_only)
    });
    assert_eq!(
        mounts.collect::<Vec<_>>(),
        [
            ("/etc/vgpu", true),
            ("/run/vgpu/region", false),
            ("/usr/local/vgpu/libvgpu.so", true),
            ("/etc/ld.so.preload", true)
        ]
    );
    assert_eq!(
        allotted.env,
        [(String::from("NVIDIA_VISIBLE_DEVICES"), String::from("void"))]
    );
    let limits = node.limits(&name);
    assert_eq!((limits.unlisted, limits.devices.len()), (Unlisted::Deny, 0));

    let map = LimitsMap::open(&node.container(&name, "limits")).unwrap();
    delivery.give(&name, &given("train", 4 * GIB)).unwrap();
    assert_eq!(map.load().unwrap().devices()[0].memory_bytes, 4 * GIB);
    let region = vgpu_abi::host::snapshot(&node.container(&name, "region")).unwrap();
    assert_eq!(region.devices[0].uuid.as_str(), GPUS[0]);
    assert!(!node.spec(&name).exists(), "the kubelet has the mounts");
    // The manner is a container's for life.
    drop(delivery);
    node.delivery(Manner::Cdi)
        .give(&name, &given("train", 5 * GIB))
        .unwrap();
    assert_eq!(map.load().unwrap().devices()[0].memory_bytes, 5 * GIB);
    assert!(!node.spec(&name).exists());
}

#[test]
fn giving_again_changes_only_different_limits() {
    let node = NodeDir::new();
    let (name, _) = node.delivery(Manner::Cdi).allot().unwrap();
    node.delivery(Manner::Cdi)
        .give(&name, &given("train", 4 * GIB))
        .unwrap();
    let all = ["limits", "targets", "doorbell", "region", "container.json"]
        .map(|file| node.container(&name, file));
    let all = [&all[..], &[node.spec(&name)]].concat();
    let stamps = || all.iter().map(|path| stamp(path)).collect::<Vec<_>>();
    let before = stamps();
    // By hand, as `vgpu set` does it.
    let by_hand = LimitsFile::open(&all[0]).unwrap();
    let mut limits = by_hand.read().unwrap();
    limits.devices[0].memory_bytes = GIB;
    by_hand.write(&limits).unwrap();
    let before = [&[stamp(&all[0])], &before[1..]].concat();

    // A new agent each time, and one that has not seen a GPU yet.
    for _ in 0..2 {
        node.delivery(Manner::Cdi)
            .give(&name, &given("train", 4 * GIB))
            .unwrap();
    }
    assert_eq!(stamps(), before);
    assert_eq!(node.limits(&name).devices[0].memory_bytes, GIB);

    let map = LimitsMap::open(&all[0]).unwrap();
    let other = Given {
        priority: 0,
        ..given("train", 6 * GIB)
    };
    node.delivery(Manner::Cdi).give(&name, &other).unwrap();
    let value = map.load().unwrap();
    assert_eq!(
        (value.priority, value.devices()[0].memory_bytes),
        (0, 6 * GIB)
    );
    let after = stamps();
    assert_eq!(
        (after[0].0, &after[1..4], &after[5..]),
        (before[0].0, &before[1..4], &before[5..])
    );
}

#[test]
fn given_devices_stay_when_the_inventory_changes() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Mounts);
    let (name, _) = delivery.allot().unwrap();
    delivery.give(&name, &given("train", 8 * GIB)).unwrap();

    for gpus in [None, Some(Arc::new(Inventory::default()))] {
        let is_read = gpus.is_some();
        node.gpus.send_replace(gpus);
        delivery.give(&name, &given("train", 8 * GIB)).unwrap();
        let error = delivery
            .give(&name, &given("train", 9 * GIB))
            .unwrap_err()
            .to_string();
        let part = if is_read {
            "is not on this node; there are none"
        } else {
            "not been read yet"
        };
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn gpu_is_never_overcommitted_beyond_its_promise() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    let give = |as_name: &str, given: &Given| {
        delivery
            .give(&name(as_name), given)
            .map_err(|error| error.to_string())
    };
    let of = |pod: &str, kind: Kind, memory: u64, cores: u32| {
        let mut given = given(pod, memory * GIB);
        given.kind = kind;
        given.devices[0].cores = cores;
        given
    };

    // The phases of one pod share.
    assert_eq!(give("a1", &of("a", Kind::Init, 10, 100)), Ok(()));
    assert_eq!(give("a2", &of("a", Kind::App, 10, 40)), Ok(()));
    // Its init container shows no process: it is over, and only 10 GiB are held.
    let error = give("b", &of("b", Kind::App, 7, 10)).unwrap_err();
    assert_eq!(
        error,
        "GPU GPU-aaaa: 7Gi for research/b container main is more than is left of its 16Gi; held by research/a \
         container main (10Gi). It is tried again"
    );
    assert!(!node.spec(&name("b")).exists() && !node.container(&name("b"), "").exists());
    assert_eq!(give("b", &of("b", Kind::App, 3, 10)), Ok(()));
    let error = give("c", &of("c", Kind::App, 1, 60)).unwrap_err();
    assert!(
        error.contains(
            "60 % of compute for research/c container main is more than is left of its 100 %"
        ),
        "{error}"
    );
    assert_eq!(give("c", &of("c", Kind::App, 1, 0)), Ok(()));
    let error = give("d", &of("d", Kind::App, 1, 0)).unwrap_err();
    assert!(
        error.contains("1 slot for research/d") && error.contains("left of its 3 slots"),
        "{error}"
    );
    // Less for one is room for another, and a raise is a question again.
    assert!(give("c", &of("c", Kind::App, 4, 0)).is_err());
    assert_eq!(give("a2", &of("a", Kind::App, 8, 40)), Ok(()));
    assert_eq!(give("c", &of("c", Kind::App, 4, 0)), Ok(()));
    // A container whose pod is gone holds nothing until it is given something again.
    let moment = delivery.moment();
    delivery.gone(&BTreeSet::from([name("b"), name("c")]), moment);
    assert_eq!(give("d", &of("d", Kind::App, 8, 0)), Ok(()));
    for memory in [2, 3, 4] {
        assert!(give("b", &of("b", Kind::App, memory, 10)).is_err());
    }
    // A new agent knows it all.
    let again = node.delivery(Manner::Cdi);
    assert!(again.give(&name("e"), &of("e", Kind::App, 1, 0)).is_err());
}

#[test]
fn invalid_allotment_error_names_the_field() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    let refused = |change: fn(&mut Given)| {
        let mut given = given("train", GIB);
        change(&mut given);
        delivery.give(&name("a"), &given).unwrap_err().to_string()
    };
    type Change = fn(&mut Given);
    let cases: [(Change, &str); 6] = [
        (|given| given.devices.clear(), "was given no GPU"),
        (
            |given| given.devices = vec![device("GPU-a", GIB); 17],
            "17 GPUs; a container can have 16",
        ),
        (
            |given| given.devices = vec![device(GPUS[0], GIB); 2],
            "GPU GPU-aaaa twice",
        ),
        (
            |given| given.devices[0].uuid = "G U".to_owned(),
            "is no UUID of a GPU",
        ),
        (
            |given| given.devices[0].memory_bytes = 0,
            "was given 0 bytes",
        ),
        (
            |given| given.devices[0].uuid = "GPU-x".to_owned(),
            "GPU GPU-x is not on this node; there are: GPU-aaaa, GPU-bbbb",
        ),
    ];
    for (change, part) in cases {
        let error = refused(change);
        assert!(error.contains(part), "{error}");
    }
    for text in [
        "",
        "..",
        "a/b",
        "../../etc",
        "A",
        "1a",
        ".new-a",
        &"a".repeat(64),
    ] {
        let error = delivery
            .give(&name(text), &given("train", GIB))
            .unwrap_err();
        assert!(matches!(error, DeliveryError::Name { .. }), "{error}");
        assert!(delivery.remove(&name(text)).is_err());
    }
    assert_eq!(files::names(delivery.root()).unwrap(), [""; 0]);
}

#[test]
fn overpromised_gpu_gives_each_its_part_of_real_memory() {
    let node = NodeDir::new();
    node.gpus.send_replace(Some(Arc::new(inventory(2))));
    let delivery = node.delivery(Manner::Cdi);

    delivery.give(&name("a"), &given("a", 20 * GIB)).unwrap();
    delivery.give(&name("b"), &given("b", 12 * GIB)).unwrap();

    let resident = ["a", "b"].map(|of| node.limits(&name(of)).devices[0].resident_bytes);
    assert_eq!(resident, [10 * GIB, 6 * GIB]);
    assert!(delivery.give(&name("c"), &given("c", GIB)).is_err());
}

#[test]
fn floor_stands_below_the_cap_and_memory_beyond_the_share_is_promised_of_no_gpu() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Claim);
    let roomy = |pod: &str| {
        let mut given = given(pod, 8 * GIB);
        given.policy = Policy::Floor;
        given.devices[0].floor = 20;
        given.devices[0].oversubscribe_bytes = 4 * GIB;
        given
    };
    let seen = |of: &str| {
        let device = node.limits(&name(of)).devices[0];
        let (cap, floor) = (device.core_percent, device.floor_percent);
        (device.memory_bytes, device.resident_bytes, cap, floor)
    };

    // Together they have all 16 GiB of the GPU.
    delivery.give(&name("a"), &roomy("a")).unwrap();
    delivery.give(&name("b"), &roomy("b")).unwrap();

    assert_eq!(seen("a"), (12 * GIB, 8 * GIB, 30, 20));
    assert_eq!(seen("b"), seen("a"));
    assert_eq!(delivery.given(&name("a")), Some(roomy("a")));
    assert!(delivery.give(&name("c"), &given("c", GIB)).is_err());

    let mut endless = roomy("d");
    endless.devices[0].oversubscribe_bytes = 8 << 40;
    let why = delivery.give(&name("d"), &endless).unwrap_err().to_string();
    assert!(why.contains("bytes beyond it"), "{why}");
}

#[test]
fn memory_beyond_the_share_of_an_overpromised_gpu_counts_from_the_part_of_real_memory() {
    let node = NodeDir::new();
    node.gpus.send_replace(Some(Arc::new(inventory(2))));
    let delivery = node.delivery(Manner::Claim);
    let mut roomy = given("a", 20 * GIB);
    roomy.devices[0].oversubscribe_bytes = 4 * GIB;

    delivery.give(&name("a"), &roomy).unwrap();

    let device = node.limits(&name("a")).devices[0];
    assert_eq!(
        (device.memory_bytes, device.resident_bytes),
        (24 * GIB, 10 * GIB)
    );
}

/// Another thread that gives a container its share, and stands still between two changes of the disk.
struct Standing {
    go_on: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Result<(), DeliveryError>>,
}

impl Standing {
    fn still(delivery: &Arc<Delivery>, to: Name, given: Given) -> Self {
        let (stands, stood) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let delivery = Arc::clone(delivery);
        let thread = std::thread::spawn(move || {
            let mut is_first = true;
            crate::steps::at_each(move || {
                if std::mem::take(&mut is_first) {
                    stands.send(()).unwrap();
                    // Ends with the other end, too.
                    assert!(goes_on.recv().is_err());
                }
            });
            delivery.give(&to, &given)
        });
        stood.recv().unwrap();
        Self { go_on, thread }
    }

    fn end(self) -> Result<(), DeliveryError> {
        drop(self.go_on);
        self.thread.join().unwrap()
    }
}

/// What `work` returns, if that does not take for ever.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(send.send(work())));
    // Far beyond what it takes: only a thread that waits for the other one reaches it.
    receive
        .recv_timeout(std::time::Duration::from_secs(20))
        .ok()
}

#[test]
fn container_waits_for_no_other_containers_files() {
    let node = NodeDir::new();
    let delivery = Arc::new(node.delivery(Manner::Cdi));
    let slow = Standing::still(&delivery, name("slow"), given("slow", GIB));

    let other = Arc::clone(&delivery);
    let given_and_removed = in_time(move || {
        other.give(&name("other"), &given("other", GIB)).unwrap();
        other.remove(&name("other")).unwrap();
        other.gpus_but(|_| false)
    });

    let taken = given_and_removed.expect("another container's files hold nothing up");
    assert_eq!(taken, BTreeSet::from([GPUS[0].to_owned()]));
    slow.end().unwrap();
    assert_eq!(node.limits(&name("slow")).devices[0].memory_bytes, GIB);
}

#[test]
fn share_counts_while_its_files_are_written() {
    let node = NodeDir::new();
    let delivery = Arc::new(node.delivery(Manner::Cdi));
    delivery.give(&name("a"), &given("a", 9 * GIB)).unwrap();
    // On its way from 9 to 2 GiB, and the new container from none to 6.
    let smaller = Standing::still(&delivery, name("a"), given("a", 2 * GIB));
    let new = Standing::still(&delivery, name("b"), given("b", 6 * GIB));

    let third = Arc::clone(&delivery);
    let refused = in_time(move || third.give(&name("c"), &given("c", 2 * GIB)));

    let refused = refused.expect("it waits for no files").unwrap_err();
    assert!(
        matches!(refused, DeliveryError::Overcommitted(_)),
        "{refused}"
    );
    smaller.end().unwrap();
    new.end().unwrap();
    delivery.give(&name("c"), &given("c", 2 * GIB)).unwrap();
}

#[test]
fn failed_share_counts_no_longer_and_the_earlier_one_does() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    delivery.give(&name("a"), &given("a", 4 * GIB)).unwrap();
    let limits = node.container(&name("a"), "limits");
    std::fs::remove_file(&limits).unwrap();
    std::fs::create_dir(&limits).unwrap();

    delivery
        .give(&name("a"), &given("a", 12 * GIB))
        .unwrap_err();

    delivery.give(&name("b"), &given("b", 12 * GIB)).unwrap();
    let refused = delivery.give(&name("c"), &given("c", GIB)).unwrap_err();
    assert!(
        matches!(refused, DeliveryError::Overcommitted(_)),
        "{refused}"
    );
}

#[test]
fn leftovers_are_cleared_between_two_containers() {
    let node = NodeDir::new();
    let delivery = Arc::new(node.delivery(Manner::Cdi));
    let slow = Standing::still(&delivery, name("slow"), given("slow", GIB));
    let clearing = Arc::clone(&delivery);
    let (send, receive) = std::sync::mpsc::channel();
    let cleared = std::thread::spawn(move || {
        send.send(()).unwrap();
        clearing.tidy()
    });
    receive.recv().unwrap();

    slow.end().unwrap();

    assert!(cleared.join().unwrap().unwrap().is_empty());
    assert!(node.spec(&name("slow")).exists());
    assert_eq!(node.limits(&name("slow")).devices[0].memory_bytes, GIB);
}
