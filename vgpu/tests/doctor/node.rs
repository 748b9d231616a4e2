//! A healthy node, and its possible faults.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_abi::region::{NewDevice, Region};

use crate::common::library;
use crate::doctor::{
    Fault, broken, diagnosed, drive, link, proc, process, put, replace, seen, tripped,
};

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";
const GIVEN: &str = "var/lib/vgpu/containers/a";
const PLUGINS: &str = "var/lib/kubelet/device-plugins";
const CHECKPOINT: &str = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
const DEVICE_CONFIG: &str = "proc/100/root/etc/vgpu-config/device-config.yaml";
const MOUNTS: &str = "\
1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw
2 1 0:31 / /run rw - tmpfs tmpfs rw
";

type Files = TempDir;

fn node() -> Files {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let root = dir.path();
    for path in [
        "dev/nvidia0",
        "dev/nvidiactl",
        "dev/nvidia-uvm",
        "usr/lib/libcuda.so.550.54.15",
        "var/lib/kubelet/pod-resources/kubelet.sock",
        "var/lib/kubelet/device-plugins/kubelet.sock",
        "var/lib/kubelet/device-plugins/vgpu.sock",
        "sys/fs/cgroup/cgroup.controllers",
        "var/run/cdi/vgpu-a.json",
    ] {
        put(root, path, "");
    }
    let registered = json!({ "Data": { "PodDeviceEntries": null, "RegisteredDevices": { "nvidia.com/gpu": ["vgpu-0", "vgpu-1"] } }, "Checksum": 1 });
    put(root, CHECKPOINT, registered.to_string());
    put(
        root,
        "etc/containerd/config.toml",
        "version = 3\n[plugins]\n  enable_cdi = true\n",
    );
    let edits = json!({ "deviceNodes": [{ "path": "/dev/nvidia0" }],
        "mounts": [{ "hostPath": "/usr/lib/libcuda.so.550.54.15", "containerPath": "/usr/lib/libcuda.so.1" }] });
    let spec = json!({ "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
        "devices": [{ "name": UUID, "containerEdits": edits }] });
    put(root, "var/run/cdi/nvidia.json", spec.to_string());
    put(
        root,
        "var/lib/vgpu/lib/0.1.0-abcd/libvgpu.so",
        fs::read(library()).unwrap(),
    );
    given(root);
    fs::set_permissions(root.join("var/lib/vgpu"), fs::Permissions::from_mode(0o755)).unwrap();
    let plugin = [
        "/usr/bin/vgpu-monitor",
        "plugin",
        "--manner=auto",
        "--cdi-dir=/var/run/cdi",
        "--device-config-file=/etc/vgpu-config/device-config.yaml",
        "--node-config-file",
        "/config/config.json",
        "--mig-strategy=none",
    ];
    process(root, 1, &["/sbin/init"], &[], &[]);
    process(root, 100, &plugin, &["NODE_NAME=n1"], &[]);
    process(root, 101, &["/usr/bin/vgpu-monitor"], &[], &[]);
    let mapped = ["/usr/local/vgpu/libvgpu.so", "/usr/lib/libcuda.so.1"];
    process(root, 200, &["python3"], &[], &mapped);
    put(
        root,
        DEVICE_CONFIG,
        "nvidia:\n  resourceCountName: nvidia.com/gpu\n",
    );
    put(
        root,
        "proc/100/root/config/config.json",
        r#"{"nodeconfig":[{"name":"n1","devicesplitcount":5}]}"#,
    );
    let sockets = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 00000000:7CF9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 0\n";
    put(root, "proc/net/tcp", sockets);
    link(root, "proc/101/fd/5", "socket:[777]");
    proc(root, MOUNTS);
    dir
}

const FINDING: &str = "var/lib/kubelet/plugins_registry/gpu.vgpu.io@reg.sock";
const CALLS: &str = "var/lib/kubelet/plugins/gpu.vgpu.io/dra@vgpu.sock";

/// Makes the node one that gives its GPUs by claims.
fn by_claims(root: &Path) {
    fs::remove_dir_all(root.join("proc/100")).unwrap();
    fs::remove_file(root.join(PLUGINS).join("vgpu.sock")).unwrap();
    process(root, 102, &["/usr/bin/vgpu-monitor", "dra"], &[], &[]);
    put(root, FINDING, "");
    put(root, CALLS, "");
}

/// Gives a process that is there other arguments.
fn restarted(root: &Path, pid: u32, command: &[&str]) {
    put(root, &format!("proc/{pid}/cmdline"), command.join("\0"));
}

/// The agent's files for a container.
fn given(root: &Path) {
    let dir = root.join(GIVEN);
    fs::create_dir_all(&dir).unwrap();
    let device = DeviceLimit {
        uuid: DeviceUuid::new(UUID).unwrap(),
        memory_bytes: 4 << 30,
        ..DeviceLimit::default()
    };
    let limits = Limits {
        devices: vec![device],
        ..Limits::default()
    };
    LimitsFile::create(&dir.join("limits"), &limits).unwrap();
    let device = NewDevice {
        uuid: device.uuid,
        physical_bytes: 16 << 30,
    };
    Region::create(&dir.join("region"), &[device], 0o666).unwrap();
    put(
        root,
        &format!("{GIVEN}/container.json"),
        r#"{"namespace":"ml","pod":"train","container":"main"}"#,
    );
    for name in ["limits", "container.json"] {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    for dir in [dir.as_path(), dir.parent().unwrap()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Facts that a test cannot arrange: the driver's answers, a listener, root's files, how full the disk is.
fn well(facts: &mut Value) {
    let answer = json!({ "status": 200, "ours": true, "sick": [] });
    facts["driver"] = json!({
        "release": "550.54.15", "cuda": 12040, "faults": [],
        "cards": [{ "index": 0, "uuid": UUID, "name": "NVIDIA A100", "memory_bytes": 17_179_869_184_u64, "instances": 0 }],
    });
    facts["metrics"] = json!({ "31993": answer });
    if facts["libraries"]["0.1.0-abcd"].is_object() {
        facts["libraries"]["0.1.0-abcd"]["needs"] = json!(["libc.so.6"]);
    }
    facts["state"]["owner"] = 0.into();
    facts["disk"] = json!({ "free_bytes": 50_u64 << 30, "bytes": 100_u64 << 30, "free_files": 100_000, "files": 200_000 });
}

fn root(files: &mut Files) -> &Path {
    files.path()
}

/// A fault of the ResourceSlices of a node that gives by claims, in facts that [`with_slices`] has made.
const fn sliced(
    verdict: &'static str,
    what: &'static str,
    as_seen: fn(&mut Value),
) -> Fault<Files> {
    Fault {
        at_source: |files| by_claims(root(files)),
        ..seen("VGPU-N29", verdict, what, as_seen)
    }
}

const FAULTS: &[Fault<Files>] = &[
    seen("VGPU-N01", "fail", "there is no driver", |facts| {
        facts["driver"] = Value::Null;
        facts["driver_error"] = "cannot load libnvidia-ml.so.1".into();
    }),
    seen("VGPU-N02", "fail", "a GPU is lost", |facts| {
        facts["driver"]["faults"] = json!(["GPU 1: nvmlDeviceGetMemoryInfo_v2: the GPU is lost"]);
    }),
    seen("VGPU-N02", "fail", "the agent calls a GPU sick", |facts| {
        facts["metrics"]["31993"]["sick"] = json!([UUID]);
    }),
    seen(
        "VGPU-N03",
        "fail",
        "the driver was upgraded and not loaded",
        |facts| {
            facts["driver"]["release"] = "570.86.15".into();
        },
    ),
    seen(
        "VGPU-N04",
        "warn",
        "the driver is newer than any that was tested",
        |facts| {
            facts["driver"]["cuda"] = 15_000.into();
        },
    ),
    broken("VGPU-N05", "fail", "nvidia-uvm is not loaded", |files| {
        fs::remove_file(root(files).join("dev/nvidia-uvm")).unwrap();
    }),
    broken("VGPU-N06", "fail", "the runtime knows no GPUs", |files| {
        fs::remove_file(root(files).join("var/run/cdi/nvidia.json")).unwrap();
    }),
    broken(
        "VGPU-N07",
        "fail",
        "the CDI spec is of an older driver",
        |files| {
            fs::remove_file(root(files).join("usr/lib/libcuda.so.550.54.15")).unwrap();
        },
    ),
    broken("VGPU-N07", "fail", "the CDI spec lacks a GPU", |files| {
        replace(root(files), "var/run/cdi/nvidia.json", UUID, "GPU-other");
    }),
    broken("VGPU-N08", "fail", "CDI is off", |files| {
        replace(
            root(files),
            "etc/containerd/config.toml",
            "enable_cdi = true",
            "enable_cdi = false",
        );
    }),
    broken(
        "VGPU-N08",
        "fail",
        "the agent cannot serve the runtime",
        |files| {
            let record = r#"{"runtime":"containerd://1.7.27 v1.35.4","manner":"mounts","hindrance":"CDI is off"}"#;
            fs::write(root(files).join("var/lib/vgpu/runtime.json"), record).unwrap();
        },
    ),
    broken("VGPU-N09", "fail", "the kubelet is down", |files| {
        fs::remove_file(root(files).join(PLUGINS).join("kubelet.sock")).unwrap();
    }),
    broken("VGPU-N10", "fail", "the plugin's socket is gone", |files| {
        fs::remove_file(root(files).join(PLUGINS).join("vgpu.sock")).unwrap();
    }),
    broken("VGPU-N10", "fail", "the kubelet was never told", |files| {
        replace(root(files), CHECKPOINT, r#"["vgpu-0","vgpu-1"]"#, "[]");
    }),
    broken(
        "VGPU-N10",
        "fail",
        "the kubelet cannot find the driver for claims",
        |files| {
            by_claims(root(files));
            fs::remove_file(root(files).join(FINDING)).unwrap();
        },
    ),
    broken("VGPU-N11", "fail", "NVIDIA's plugin runs too", |files| {
        put(root(files), &format!("{PLUGINS}/nvidia-gpu.sock"), "");
    }),
    broken(
        "VGPU-N11",
        "fail",
        "the kubelet has NVIDIA's devices",
        |files| {
            replace(root(files), CHECKPOINT, "vgpu-0", UUID);
        },
    ),
    broken(
        "VGPU-N12",
        "fail",
        "the state directory is writable by all users",
        |files| {
            let path = root(files).join("var/lib/vgpu");
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        },
    ),
    seen(
        "VGPU-N12",
        "fail",
        "the state directory belongs to another user",
        |facts| {
            facts["state"]["owner"] = 1000.into();
        },
    ),
    broken(
        "VGPU-N13",
        "fail",
        "the state directory is in memory",
        |files| {
            let text = format!("{MOUNTS}3 1 0:40 / /var/lib/vgpu rw - tmpfs tmpfs rw\n");
            put(root(files), "proc/1/mountinfo", text);
        },
    ),
    broken(
        "VGPU-N14",
        "fail",
        "the state directory is read-only",
        |files| {
            replace(
                root(files),
                "proc/1/mountinfo",
                "/ / rw,relatime",
                "/ / ro,relatime",
            );
        },
    ),
    seen("VGPU-N14", "fail", "the disk is full", |facts| {
        facts["disk"]["free_bytes"] = 1_000_000.into();
    }),
    seen("VGPU-N14", "fail", "the disk has no inodes", |facts| {
        facts["disk"]["free_files"] = 3.into();
    }),
    seen("VGPU-N14", "warn", "the disk is nearly full", |facts| {
        facts["disk"]["free_bytes"] = json!(2_u64 << 30);
    }),
    broken("VGPU-N15", "fail", "the library was deleted", |files| {
        let lib = root(files).join("var/lib/vgpu/lib");
        fs::rename(
            lib.join("0.1.0-abcd/libvgpu.so"),
            lib.join("0.1.0-abcd/libvgpu.so.old"),
        )
        .unwrap();
    }),
    broken("VGPU-N16", "fail", "a region of a later release", |files| {
        let path = root(files).join(GIVEN).join("region");
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 9;
        fs::write(path, bytes).unwrap();
    }),
    broken("VGPU-N17", "fail", "limits that are damaged", |files| {
        put(root(files), &format!("{GIVEN}/limits"), vec![7; 4096]);
    }),
    broken(
        "VGPU-N17",
        "fail",
        "a directory that others may write",
        |files| {
            let path = root(files).join(GIVEN);
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        },
    ),
    broken("VGPU-N18", "fail", "the exporter does not run", |files| {
        let root = root(files);
        fs::remove_dir_all(root.join("proc/101")).unwrap();
        fs::remove_file(root.join("proc/net/tcp")).unwrap();
    }),
    broken(
        "VGPU-N18",
        "fail",
        "the exporter of a node that gives by claims does not run",
        |files| {
            let root = root(files);
            by_claims(root);
            fs::remove_dir_all(root.join("proc/101")).unwrap();
            fs::remove_file(root.join("proc/net/tcp")).unwrap();
        },
    ),
    broken(
        "VGPU-N18",
        "fail",
        "the node gives by claims and by the device plugin",
        |files| {
            let root = root(files);
            process(root, 102, &["/usr/bin/vgpu-monitor", "dra"], &[], &[]);
            put(root, FINDING, "");
            put(root, CALLS, "");
        },
    ),
    seen("VGPU-N19", "fail", "the agent answers 503", |facts| {
        facts["metrics"]["31993"] = json!({ "status": 503, "ours": true });
    }),
    broken(
        "VGPU-N20",
        "fail",
        "another program has the port",
        |files| {
            let root = root(files);
            link(root, "proc/200/fd/5", "socket:[777]");
            fs::remove_file(root.join("proc/101/fd/5")).unwrap();
        },
    ),
    broken("VGPU-N21", "fail", "HAMi's monitor runs", |files| {
        process(root(files), 300, &["/k8s-vgpu/bin/vGPUmonitor"], &[], &[]);
    }),
    broken("VGPU-N22", "warn", "HAMi was here", |files| {
        put(root(files), "usr/local/vgpu/ld.so.preload", "");
    }),
    broken(
        "VGPU-N23",
        "warn",
        "a process outside of containers",
        |files| {
            put(
                root(files),
                "proc/200/maps",
                "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libcuda.so.1\n",
            );
        },
    ),
    broken("VGPU-N24", "fail", "an unknown key", |files| {
        replace(
            root(files),
            DEVICE_CONFIG,
            "nvidia:",
            "nvidia:\n  deviceSplitCoun: 3",
        );
    }),
    broken("VGPU-N25", "fail", "an unknown key of a node", |files| {
        replace(
            root(files),
            "proc/100/root/config/config.json",
            "devicesplitcount",
            "split",
        );
    }),
    seen(
        "VGPU-N26",
        "fail",
        "a GPU is split and its parts are not offered",
        |facts| {
            facts["driver"]["cards"][0]["instances"] = 2.into();
        },
    ),
    broken(
        "VGPU-N27",
        "fail",
        "the agent writes CDI to nowhere",
        |files| {
            replace(
                root(files),
                "proc/100/cmdline",
                "--cdi-dir=/var/run/cdi",
                "--cdi-dir=/var/run/cdj",
            );
        },
    ),
    seen(
        "VGPU-N28",
        "warn",
        "the library is not one that ships",
        |facts| {
            facts["libraries"]["0.1.0-abcd"]["needs"] = json!(["libc.so.6", "libgcc_s.so.1"]);
        },
    ),
    broken("VGPU-N18", "fail", "only the second fence runs", |files| {
        let root = root(files);
        let fence = ["/usr/bin/vgpu-monitor", "fence"];
        process(root, 103, &fence, &[], &[]);
        fs::remove_dir_all(root.join("proc/101")).unwrap();
        fs::remove_file(root.join("proc/net/tcp")).unwrap();
    }),
    broken(
        "VGPU-N24",
        "fail",
        "an unknown key on a node that gives by claims",
        |files| {
            let root = root(files);
            by_claims(root);
            let dra = [
                "/usr/bin/vgpu-monitor",
                "dra",
                "--device-config-file=/c.yaml",
            ];
            restarted(root, 102, &dra);
            put(root, "proc/102/root/c.yaml", "nvidia: {deviceSplitCoun: 3}");
        },
    ),
    Fault {
        at_source: |files| by_claims(root(files)),
        ..seen(
            "VGPU-N26",
            "fail",
            "a GPU is split, and claims are given none of its parts",
            |facts| facts["driver"]["cards"][0]["instances"] = 2.into(),
        )
    },
    broken(
        "VGPU-N27",
        "fail",
        "the driver for claims writes CDI to nowhere",
        |files| {
            let root = root(files);
            by_claims(root);
            let dra = ["/usr/bin/vgpu-monitor", "dra", "--cdi-dir=/var/run/cdj"];
            restarted(root, 102, &dra);
        },
    ),
    sliced("fail", "a GPU that the node has no more", |facts| {
        facts["slices"][0]["devices"][0]["uuid"] = "GPU-gone".into();
    }),
    sliced("fail", "another memory than the driver's", |facts| {
        facts["slices"][0]["devices"][0]["memory"] = "15Gi".into();
    }),
    sliced("fail", "a slice of an older generation", |facts| {
        let mut old = facts["slices"][0].clone();
        old["generation"] = 2.into();
        facts["slices"].as_array_mut().unwrap().push(old);
    }),
    sliced("fail", "a slice that is not there yet", |facts| {
        facts["slices"][0]["count"] = 2.into();
    }),
    sliced("fail", "no slice at all", |facts| {
        facts["slices"] = json!([])
    }),
    sliced("warn", "a GPU in no slice", |facts| {
        facts["slices"][0]["devices"] = json!([]);
    }),
    broken(
        "VGPU-N30",
        "fail",
        "the second fence's container does not run",
        |files| {
            let exporter = ["/usr/bin/vgpu-monitor", "--no-fence"];
            restarted(root(files), 101, &exporter);
        },
    ),
    broken(
        "VGPU-N30",
        "warn",
        "two processes set the driver's limits",
        |files| {
            let fence = ["/usr/bin/vgpu-monitor", "fence"];
            process(root(files), 103, &fence, &[], &[]);
        },
    ),
    broken(
        "VGPU-N13",
        "warn",
        "the node keeps nothing over a restart",
        |files| {
            replace(
                root(files),
                "proc/1/mountinfo",
                "- ext4 /dev/sda1",
                "- tmpfs tmpfs",
            );
        },
    ),
];

#[test]
fn healthy_node_passes_and_each_fault_fails_its_own_check() {
    drive("node", FAULTS, |fault| {
        let mut files = node();
        (fault.at_source)(&mut files);
        let root = files.path().to_str().unwrap();
        diagnosed(&["node", "--root", root], |facts| {
            well(facts);
            if fault.id == "VGPU-N29" {
                with_slices(facts);
            }
            (fault.as_seen)(facts);
        })
    });
}

/// The facts of a node that gives by claims, with one slice of its GPU.
fn with_slices(facts: &mut Value) {
    facts["slices"] = json!([{ "name": "n1-gpu.vgpu.io-0", "generation": 3, "count": 1,
        "devices": [{ "name": "gpu-0", "uuid": UUID, "profile": "", "memory": "16Gi" }] }]);
}

#[test]
fn node_that_gives_by_claims_is_judged_by_its_own_process() {
    let files = node();
    by_claims(files.path());
    let fence = ["/usr/bin/vgpu-monitor", "fence"];
    process(files.path(), 103, &fence, &[], &[]);
    let exporter = ["/usr/bin/vgpu-monitor", "--no-fence"];
    restarted(files.path(), 101, &exporter);
    let root = files.path().to_str().unwrap();

    let (code, document) = diagnosed(&["node", "--root", root], |facts| {
        well(facts);
        with_slices(facts);
        // Half of what the driver shows is an instance.
        let part =
            json!({ "name": "gpu-0-1g", "uuid": UUID, "profile": "1g.5gb", "memory": "5Gi" });
        facts["slices"][0]["devices"]
            .as_array_mut()
            .unwrap()
            .push(part);
    });

    assert_eq!(tripped(&document, true), BTreeMap::new(), "{document:#}");
    assert_eq!(code, 0);
    let rows = document["checks"].as_array().unwrap();
    let said = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap()["evidence"].clone();
    assert_eq!(
        said("VGPU-N29"),
        "1 slices, 2 devices of 1 GPUs, generation 3"
    );
    assert_eq!(said("VGPU-N27"), "by claims, cgroup version 2");
    assert_eq!(said("VGPU-N30"), "vgpu-monitor fence");
}

#[test]
fn a_machine_that_is_no_node_says_so_and_judges_nothing_else() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let root = dir.path();
    process(root, 1, &["/sbin/init"], &[], &[]);
    proc(root, MOUNTS);

    let output = crate::doctor::vgpu(&["node", "--root", root.to_str().unwrap(), "--json"]);

    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{document:#}");
    let rows = document["checks"].as_array().unwrap();
    let kubelet = rows.iter().find(|row| row["id"] == "VGPU-N09").unwrap();
    assert_eq!(kubelet["verdict"], "skipped");
    let why = kubelet["evidence"].as_str().unwrap();
    assert!(why.contains("this is no node of a cluster"), "{why}");
}
