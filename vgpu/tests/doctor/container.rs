//! A healthy container, and its possible faults.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_abi::region::{NewDevice, Region};
use vgpu_abi::targets::{Head, TargetsFile};

use crate::common::library;
use crate::doctor::{
    Fault, broken, diagnosed, drive, link, monotonic_ns, proc, process, put, replace, seen,
};

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";
const OURS: &str = "usr/local/vgpu/libvgpu.so";
const REAL: &str = "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15";
const MOUNTS: &str = "\
1 0 0:30 / / rw,relatime - overlay overlay rw,lowerdir=/x
2 1 8:1 /var/lib/vgpu/containers/a /etc/vgpu ro,relatime - ext4 /dev/sda1 rw
3 1 8:1 /var/lib/vgpu/containers/a/region /run/vgpu/region rw,relatime - ext4 /dev/sda1 rw
";

type Files = TempDir;

fn limits(root: &Path, mib: u64) {
    let path = root.join("etc/vgpu/limits");
    fs::remove_file(&path).ok();
    let device = DeviceLimit {
        uuid: DeviceUuid::new(UUID).unwrap(),
        memory_bytes: mib << 20,
        physical_bytes: 16 << 30,
        core_percent: 30,
        ..DeviceLimit::default()
    };
    let limits = Limits {
        devices: vec![device],
        ..Limits::default()
    };
    LimitsFile::create(&path, &limits).unwrap();
}

fn beat(root: &Path, ago_ns: u64) {
    let targets = TargetsFile::open(&root.join("etc/vgpu/targets")).unwrap();
    targets.beat(&Head {
        heartbeat_ns: monotonic_ns().saturating_sub(ago_ns),
        ..Head::default()
    });
}

fn container() -> Files {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let root = dir.path();
    for path in [
        "etc/vgpu",
        "run/vgpu",
        "dev",
        "lib/x86_64-linux-gnu",
        "proc",
    ] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    limits(root, 4096);
    TargetsFile::create(&root.join("etc/vgpu/targets")).unwrap();
    // Far enough in the future that no machine is slow enough to make it old.
    beat(root, 0);
    let device = NewDevice {
        uuid: DeviceUuid::new(UUID).unwrap(),
        physical_bytes: 16 << 30,
    };
    Region::create(&root.join("run/vgpu/region"), &[device], 0o666).unwrap();
    put(root, "etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n");
    put(root, OURS, fs::read(library()).unwrap());
    put(
        root,
        "lib/x86_64-linux-gnu/libc.so.6",
        "GNU C Library stable release version 2.99.\n",
    );
    // A file of a library built with debug information instead of for shipping.
    put(root, "lib/x86_64-linux-gnu/libgcc_s.so.1", "");
    put(root, REAL, "");
    link(
        root,
        "usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "libcuda.so.550.54.15",
    );
    put(root, "dev/nvidia0", "");
    put(root, "dev/nvidiactl", "");
    let mapped = ["/usr/local/vgpu/libvgpu.so", "/usr/lib/libcuda.so.1"];
    let environment = ["NVIDIA_VISIBLE_DEVICES=void", "SECRET=hush"];
    process(root, 1, &["/sbin/init"], &environment, &[]);
    process(root, 7, &["python3"], &environment, &mapped);
    proc(root, MOUNTS);
    dir
}

fn root(files: &mut Files) -> &Path {
    files.path()
}

/// The library comes from the variable, as without an agent.
fn by_variable(files: &mut Files) {
    fs::remove_file(files.path().join("etc/ld.so.preload")).unwrap();
    for pid in [1, 7] {
        put(
            files.path(),
            &format!("proc/{pid}/environ"),
            "LD_PRELOAD=/usr/local/vgpu/libvgpu.so",
        );
    }
}

const FAULTS: &[Fault<Files>] = &[
    broken("VGPU-C01", "fail", "no limits came", |files| {
        fs::remove_file(root(files).join("etc/vgpu/limits")).unwrap();
    }),
    broken(
        "VGPU-C02",
        "fail",
        "the limits are of another kind",
        |files| {
            put(root(files), "etc/vgpu/limits", vec![7; 4096]);
        },
    ),
    broken("VGPU-C03", "fail", "the limits can be written", |files| {
        replace(
            root(files),
            "proc/1/mountinfo",
            "/etc/vgpu ro",
            "/etc/vgpu rw",
        );
    }),
    broken("VGPU-C04", "fail", "the region is cut short", |files| {
        put(root(files), "run/vgpu/region", "short");
    }),
    broken(
        "VGPU-C04",
        "fail",
        "the region is mounted read-only",
        |files| {
            replace(
                root(files),
                "proc/1/mountinfo",
                "/run/vgpu/region rw",
                "/run/vgpu/region ro",
            );
        },
    ),
    broken(
        "VGPU-C05",
        "fail",
        "the region is of a later release",
        |files| {
            let path = root(files).join("run/vgpu/region");
            let mut bytes = fs::read(&path).unwrap();
            bytes[8] = 9;
            fs::write(path, bytes).unwrap();
        },
    ),
    broken(
        "VGPU-C06",
        "fail",
        "the region lies on the image's overlay",
        |files| {
            let text = MOUNTS.lines().take(2).collect::<Vec<_>>().join("\n");
            put(root(files), "proc/1/mountinfo", text);
        },
    ),
    broken(
        "VGPU-C07",
        "fail",
        "nothing preloads the library",
        |files| {
            put(root(files), "etc/ld.so.preload", "/usr/lib/libother.so\n");
        },
    ),
    broken("VGPU-C08", "fail", "the library is not there", |files| {
        fs::remove_file(root(files).join(OURS)).unwrap();
    }),
    broken("VGPU-C08", "fail", "the library is HAMi's", |files| {
        let path = root(files).join(OURS);
        let mut bytes = fs::read(&path).unwrap();
        let marker = b"VGPU_LIBRARY_MARKER\0";
        let places: Vec<usize> = (0..bytes.len() - marker.len())
            .filter(|at| bytes[*at..].starts_with(marker))
            .collect();
        for at in places {
            bytes[at] = b'X';
        }
        fs::write(path, bytes).unwrap();
    }),
    broken("VGPU-C09", "fail", "the image is Alpine", |files| {
        fs::remove_file(root(files).join("lib/x86_64-linux-gnu/libc.so.6")).unwrap();
        put(root(files), "lib/ld-musl-x86_64.so.1", "");
    }),
    broken(
        "VGPU-C10",
        "fail",
        "the image's glibc is older than the library",
        |files| {
            put(
                root(files),
                "lib/x86_64-linux-gnu/libc.so.6",
                "GNU C Library stable release version 2.2.\n",
            );
        },
    ),
    broken(
        "VGPU-C11",
        "fail",
        "a start script replaced LD_PRELOAD",
        |files| {
            by_variable(files);
            put(root(files), "proc/7/environ", "LD_PRELOAD=/opt/jemalloc.so");
        },
    ),
    broken(
        "VGPU-C12",
        "fail",
        "a process cleared its environment",
        |files| {
            put(
                root(files),
                "proc/7/maps",
                "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libcuda.so.1\n",
            );
        },
    ),
    broken(
        "VGPU-C13",
        "warn",
        "the image asks to switch it off",
        |files| {
            put(root(files), "proc/7/environ", "CUDA_DISABLE_CONTROL=true");
        },
    ),
    broken(
        "VGPU-C14",
        "fail",
        "the image asks for every GPU",
        |files| {
            put(root(files), "proc/1/environ", "NVIDIA_VISIBLE_DEVICES=all");
        },
    ),
    broken(
        "VGPU-C15",
        "fail",
        "the default runtime shows every GPU",
        |files| {
            put(root(files), "dev/nvidia1", "");
        },
    ),
    broken("VGPU-C16", "warn", "the pod has hostPID", |files| {
        link(root(files), "proc/1/ns/pid", "pid:[4026531836]");
    }),
    broken(
        "VGPU-C17",
        "fail",
        "the image brings a driver of its own",
        |files| {
            link(
                root(files),
                "usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "libcuda.so.470.1",
            );
            put(root(files), "usr/lib/x86_64-linux-gnu/libcuda.so.470.1", "");
        },
    ),
    broken("VGPU-C18", "warn", "the agent is gone", |files| {
        beat(root(files), 60_000_000_000);
    }),
    seen("VGPU-C18", "warn", "there are no targets", |facts| {
        facts["heartbeat_ago_ms"] = serde_json::Value::Null;
    }),
    broken("VGPU-C19", "warn", "the container is privileged", |files| {
        put(root(files), "proc/1/status", "CapEff:\t000001ffffffffff\n");
    }),
    broken(
        "VGPU-C20",
        "warn",
        "less memory than a context takes",
        |files| {
            limits(root(files), 100);
        },
    ),
    seen(
        "VGPU-C21",
        "fail",
        "the image lacks what the library needs",
        |facts| {
            facts["missing"] = serde_json::json!(["libgcc_s.so.1"]);
        },
    ),
];

#[test]
fn healthy_container_passes_and_each_fault_fails_its_own_check() {
    drive("container", FAULTS, |fault| {
        let mut files = container();
        (fault.at_source)(&mut files);
        let root = files.path().to_str().unwrap();
        diagnosed(&["container", "--root", root], |facts| {
            // A slow machine may take longer than the arbiter's patience from the fixture to here.
            if fault.id != "VGPU-C18" && !facts["heartbeat_ago_ms"].is_null() {
                facts["heartbeat_ago_ms"] = 20.into();
            }
            (fault.as_seen)(facts);
        })
    });
}

#[test]
fn the_library_may_come_by_the_variable_as_well() {
    let mut files = container();
    by_variable(&mut files);
    let root = files.path().to_str().unwrap();

    let (code, document) = diagnosed(&["container", "--root", root], |facts| {
        facts["heartbeat_ago_ms"] = 20.into();
    });

    assert_eq!(
        (code, document["summary"]["ok"].as_u64()),
        (0, Some(21)),
        "{document:#}"
    );
}

#[test]
fn facts_contain_no_private_data() {
    let files = container();
    let root = files.path().to_str().unwrap();

    let facts = crate::doctor::vgpu(&["container", "--root", root, "--facts", "-"]);

    let text = String::from_utf8(facts.stdout).unwrap();
    assert!(
        text.contains("NVIDIA_VISIBLE_DEVICES") && !text.contains("hush"),
        "{text}"
    );
}
