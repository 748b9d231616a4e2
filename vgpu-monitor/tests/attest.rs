//! Tricks to get more of a GPU than a container has, live: each is refused by the library, or named by attestation; none
//! is silent. The programs run in mount namespaces of their own with what the agent mounts into a container, on the
//! simulated driver, whose libraries hold device files open. Which pod a process is in comes from a `/proc` that is the
//! real one but for the control groups.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test: a panic is its answer, and what it met is printed"
)]

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cuda_sim::{Board, Config};
use embedded_cluster::Cluster as Api;
use events::Events;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use sha2::{Digest, Sha256};
use supervisor::gpu::{Gpus, NvmlGpus};
use supervisor::instance::{Instance, Labels};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits};
use vgpu_monitor::attest::cluster::Cluster;
use vgpu_monitor::attest::series::Row;
use vgpu_monitor::attest::tell::Policy;
use vgpu_monitor::attest::verdict::Verdict;
use vgpu_monitor::attest::watch::LookPace;
use vgpu_monitor::attest::{AttestSettings, Attestation};
use vgpu_monitor::driver_files::DriverFiles;
use vgpu_monitor::gpu::Asker;
use vgpu_monitor::reconcile;

use crate::harness::{built, only};
use crate::waiting::found;

const GIB: u64 = 1 << 30;
const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";
const OTHER: &str = "ffffffff-1111-2222-3333-444455556666";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A node with one container of one pod.
struct World {
    folder: PathBuf,
    attestation: Attestation,
    api: kube::Client,
    runtime: tokio::runtime::Runtime,
}

impl World {
    /// Below this folder; with `asks`, the driver is asked, which the environment chooses.
    fn new(folder: &Path, asks: bool, policy: Policy) -> Self {
        let folder = folder.to_owned();
        let path = |name: &str| folder.join(name);
        // An unprivileged user runs a program of it.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        for dir in [
            "sim",
            "dev",
            "proc",
            "containers",
            "lib",
            "foreign",
            "etc",
            "etc-env",
        ] {
            std::fs::create_dir_all(path(dir)).unwrap();
        }
        let config = Config {
            memory_bytes: vec![16 * GIB; 2],
            context_bytes: 64 << 20,
            ..Config::default()
        };
        let board = Board::create(&path("board"), &config).unwrap();
        for (name, file) in [
            ("libcuda.so", "libcuda.so"),
            ("libcuda.so.1", "libcuda.so"),
            ("libnvidia-ml.so.1", "libnvidia_ml.so"),
        ] {
            symlink(built(file), path("sim").join(name)).unwrap();
        }
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
            std::fs::write(path("dev").join(name), "").unwrap();
        }
        // The library as the plugin installs it, an older one, and a foreign one.
        let bytes = std::fs::read(built("libvgpu.so")).unwrap();
        let hash: String = Sha256::digest(&bytes)
            .iter()
            .take(6)
            .map(|b| format!("{b:02x}"))
            .collect();
        let newest = format!("{}-{hash}", env!("CARGO_PKG_VERSION"));
        for (dir, name) in [
            ("lib", newest.as_str()),
            ("lib", "0.0.1-aaaaaaaaaaaa"),
            ("foreign", "x"),
        ] {
            let dir = path(dir).join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::copy(built("libvgpu.so"), dir.join("libvgpu.so")).unwrap();
        }
        symlink(path("lib").join(&newest), path("newest")).unwrap();
        let library = path("lib").join(&newest).join("libvgpu.so");
        for etc in ["etc", "etc-env"] {
            for file in ["passwd", "group", "ld.so.cache"] {
                std::fs::copy(Path::new("/etc").join(file), path(etc).join(file)).unwrap();
            }
            std::fs::create_dir(path(etc).join("vgpu")).unwrap();
        }
        std::fs::write(
            path("etc/ld.so.preload"),
            format!("{}\n", library.display()),
        )
        .unwrap();

        let limits = Limits {
            devices: vec![DeviceLimit {
                uuid: DeviceUuid::new(&board.uuid(0)).unwrap(),
                memory_bytes: GIB,
                physical_bytes: 16 * GIB,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        };
        let labels = Labels {
            namespace: "ml".to_owned(),
            pod: "escape".to_owned(),
            container: "main".to_owned(),
            pod_uid: POD.to_owned(),
            ..Labels::default()
        };
        let parent = std::fs::File::open(path("containers")).unwrap().into();
        let made = Instance::create(&parent, &path("containers"), "v1", &labels).unwrap();
        made.0.fill(&limits, 0o666).unwrap();
        std::fs::set_permissions(path("containers/v1"), PermissionsExt::from_mode(0o755)).unwrap();
        // Limits as a tenant would like them.
        let wished = Limits {
            devices: vec![DeviceLimit {
                memory_bytes: 16 * GIB,
                ..limits.devices[0]
            }],
            ..limits
        };
        std::fs::create_dir(path("wished")).unwrap();
        let wish = Instance::create(
            &std::fs::File::open(path("wished")).unwrap().into(),
            &path("wished"),
            "w",
            &labels,
        )
        .unwrap();
        wish.0.fill(&wished, 0o666).unwrap();
        std::fs::set_permissions(path("wished/w"), PermissionsExt::from_mode(0o755)).unwrap();

        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escapes");
        for (source, to, options) in [
            ("escape.c", "escape", &["-ldl"][..]),
            ("inner.c", "inner.so", &["-shared", "-fPIC"]),
            ("raw.c", "raw", &["-static"]),
        ] {
            let compiled = Command::new("cc")
                .args(["-O1", "-g", "-Wall", "-I"])
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include"))
                .arg(sources.join(source))
                .arg("-o")
                .arg(path(to))
                .args(options)
                .status()
                .unwrap();
            assert!(compiled.success(), "{source}");
        }

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let cluster = Api::default();
        let state = serde_json::json!({
            "namespaces": [{ "metadata": { "name": "ml" } }, { "metadata": { "name": "default" } }],
            "pods": [{
                "metadata": { "name": "escape", "namespace": "ml", "uid": POD },
                "spec": { "nodeName": "n1", "containers": [{ "name": "main", "image": "i" }] },
            }, {
                "metadata": { "name": "guest", "namespace": "ml", "uid": OTHER },
                "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
            }],
        });
        cluster.import(&state).unwrap();
        let api = {
            let _inside = runtime.enter();
            kube::Client::new(cluster.router(), "default")
        };
        let settings = AttestSettings {
            node: "n1".to_owned(),
            root: path("containers"),
            libraries: path("lib"),
            library: built("libvgpu.so"),
            proc: path("proc"),
            devices: path("dev/nvidia").to_string_lossy().into_owned(),
            exempt_namespaces: ["trusted".to_owned()].into(),
            exempt_programs: ["raw".to_owned()].into(),
            policy,
            pace: LookPace {
                every: Duration::from_millis(20),
                turn: Duration::from_secs(1),
                idle: Duration::from_millis(40),
                holder: Duration::from_millis(40),
                bad: Duration::from_millis(40),
                confirm: Duration::from_millis(120),
            },
            reconcile: Duration::from_millis(100),
        };
        let attestation = {
            let _inside = runtime.enter();
            let events = Events::start(api.clone(), "vgpu-monitor");
            let cluster = Cluster::start(api.clone(), "n1");
            let asker = asks.then(|| {
                Asker::start(DriverFiles::new(Path::new("/sys"), Duration::ZERO)).unwrap()
            });
            Attestation::start(settings, asker, events, cluster).unwrap()
        };
        Self {
            folder,
            attestation,
            api,
            runtime,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a process visible to the agent, in this control group.
    fn show(&self, pid: u32, cgroup: &str) {
        let dir = self.path("proc").join(pid.to_string());
        std::fs::create_dir(&dir).unwrap();
        for name in ["fd", "maps", "root", "stat", "comm"] {
            symlink(format!("/proc/{pid}/{name}"), dir.join(name)).unwrap();
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        symlink(program, dir.join("exe")).unwrap();
        std::fs::write(dir.join("cgroup"), cgroup).unwrap();
    }

    fn hide(&self, pid: u32) {
        std::fs::remove_dir_all(self.path("proc").join(pid.to_string())).unwrap();
    }

    /// The row of a process in the picture, once several turns have gone by.
    fn row(&self, pid: u32) -> Row {
        let begun = self.attestation.picture().turns;
        found(&format!("seen: process {pid}"), || {
            let picture = self.attestation.picture();
            let row = picture.holders.iter().find(|row| row.pid == pid);
            match row {
                Some(row) if picture.turns > begun + 20 => Ok(row.clone()),
                _ => Err(picture.turns),
            }
        })
    }

    fn events(&self) -> Vec<Event> {
        let events: kube::Api<Event> = kube::Api::all(self.api.clone());
        let every = ListParams::default();
        self.runtime.block_on(events.list(&every)).unwrap().items
    }
}

/// How the library comes to a program.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    /// `/etc/ld.so.preload`, as the agent mounts it.
    File,
    /// `LD_PRELOAD` alone, of this library.
    Variable(&'static str),
}

/// The outcome of a trick.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Comes {
    /// The limit holds, and the process counts as managed.
    Blocked,
    /// It counts as this.
    Seen(Verdict, &'static str),
}

struct Trick {
    name: &'static str,
    by: By,
    /// A shell's words before the program: it is run by `exec`.
    before: &'static str,
    program: &'static str,
    argument: &'static str,
    /// The control group's pod; empty: of the host.
    pod: &'static str,
    comes: Comes,
}

const fn trick(name: &'static str, by: By, argument: &'static str, comes: Comes) -> Trick {
    Trick {
        name,
        by,
        before: "exec",
        program: "escape",
        argument,
        pod: POD,
        comes,
    }
}

use By::{File, Variable};
use Comes::{Blocked, Seen};
use Verdict::{Exempt, ForeignLimits, Stale, Unmanaged};

/// Keeps what the simulated driver needs, which a real one finds without the environment.
const CLEAN: &str = "exec env -i DRIVER=$DRIVER DEVICE=$DEVICE VGPU_SIM_BOARD=$VGPU_SIM_BOARD VGPU_SIM_DEVICES_DIR=$VGPU_SIM_DEVICES_DIR";

const TRICKS: &[Trick] = &[
    trick("an honest program", File, "plain", Blocked),
    trick(
        "an honest program under LD_PRELOAD alone",
        Variable("newest"),
        "plain",
        Blocked,
    ),
    trick("unset LD_PRELOAD and exec", File, "unset", Blocked),
    trick(
        "unset LD_PRELOAD and exec, without the file",
        Variable("newest"),
        "unset",
        Seen(Unmanaged, "no_library"),
    ),
    trick("LD_PRELOAD= and exec", File, "empty", Blocked),
    trick(
        "LD_PRELOAD= and exec, without the file",
        Variable("newest"),
        "empty",
        Seen(Unmanaged, "no_library"),
    ),
    trick("fork and exec", File, "fork", Blocked),
    Trick {
        before: CLEAN,
        ..trick("a login with a clean environment", File, "plain", Blocked)
    },
    Trick {
        before: CLEAN,
        ..trick(
            "a login with a clean environment, without the file",
            Variable("newest"),
            "plain",
            Seen(Unmanaged, "no_library"),
        )
    },
    Trick {
        before: "exec setpriv --reuid=65534 --regid=65534 --clear-groups",
        program: "setuid",
        ..trick("a setuid program", File, "plain", Blocked)
    },
    Trick {
        before: "exec setpriv --reuid=65534 --regid=65534 --clear-groups",
        program: "setuid",
        ..trick(
            "a setuid program, without the file",
            Variable("newest"),
            "plain",
            Seen(Unmanaged, "no_library"),
        )
    },
    trick("dlsym(RTLD_NEXT)", File, "next", Blocked),
    trick("RTLD_DEEPBIND", File, "deepbind", Blocked),
    trick("dlmopen of the driver", File, "dlmopen", Blocked),
    trick(
        "a plugin in a namespace of the loader",
        File,
        "inner",
        Seen(Unmanaged, "bypassed"),
    ),
    trick(
        "a walk through the driver's ELF",
        File,
        "walk",
        Seen(Unmanaged, "bypassed"),
    ),
    trick(
        "system calls on the device",
        File,
        "raw",
        Seen(Unmanaged, "bypassed"),
    ),
    Trick {
        program: "raw",
        ..trick("a static program", File, "", Seen(Unmanaged, "no_library"))
    },
    trick("an edited limits file", File, "limits", Blocked),
    Trick {
        before: "mount -t tmpfs none /etc/vgpu && cp $WISHED/limits $WISHED/targets /etc/vgpu/ && exec",
        ..trick(
            "a nested namespace with limits of its own",
            File,
            "plain",
            Seen(ForeignLimits, "foreign_limits"),
        )
    },
    Trick {
        before: "mount --bind /dev/null /etc/ld.so.preload && exec",
        ..trick(
            "a nested namespace without the library",
            File,
            "plain",
            Seen(Unmanaged, "no_library"),
        )
    },
    Trick {
        before: "umount /etc/vgpu && exec env VGPU_LIMITS=$WISHED/limits VGPU_REGION=$WISHED/region",
        ..trick(
            "limits by a variable",
            File,
            "plain",
            Seen(ForeignLimits, "foreign_limits"),
        )
    },
    trick(
        "a library that the image brings",
        Variable("foreign/x"),
        "plain",
        Seen(Unmanaged, "foreign_library"),
    ),
    trick(
        "an older library",
        Variable("lib/0.0.1-aaaaaaaaaaaa"),
        "plain",
        Seen(Stale, "none"),
    ),
    Trick {
        pod: OTHER,
        ..trick(
            "a pod that asked for no GPU",
            File,
            "plain",
            Seen(Unmanaged, "not_asked"),
        )
    },
    Trick {
        pod: "",
        ..trick(
            "a process of the host",
            Variable("none"),
            "plain",
            Seen(Unmanaged, "host"),
        )
    },
    Trick {
        pod: "",
        program: "raw",
        ..trick("a daemon of the driver", File, "", Seen(Exempt, "none"))
    },
];

struct Running {
    child: Child,
    pid: u32,
    said: String,
}

fn start(world: &World, trick: &Trick) -> Running {
    let (etc, preload) = match trick.by {
        File => ("etc", None),
        Variable("none") => ("etc-env", None),
        Variable(library) => ("etc-env", Some(world.path(library).join("libvgpu.so"))),
    };
    let variable = preload.map_or(String::new(), |library| {
        format!("export LD_PRELOAD={}", library.display())
    });
    let script = format!(
        "set -e
         mount --bind {etc} /etc
         mount --bind {instance} /etc/vgpu && mount -o remount,bind,ro /etc/vgpu
         mount -t tmpfs none /run && mkdir -p /run/vgpu && : > /run/vgpu/region
         mount --bind {instance}/region /run/vgpu/region
         {variable}
         {before} {program} {argument}",
        etc = world.path(etc).display(),
        instance = world.path("containers/v1").display(),
        before = trick.before,
        program = world.path(trick.program).display(),
        argument = trick.argument,
    );
    let env: Vec<(&str, OsString)> = vec![
        ("DRIVER", world.path("sim/libcuda.so.1").into()),
        ("DEVICE", world.path("dev/nvidia0").into()),
        ("INNER", world.path("inner.so").into()),
        ("WISHED", world.path("wished/w").into()),
        ("VGPU_SIM_BOARD", world.path("board").into()),
        ("VGPU_SIM_DEVICES_DIR", world.path("dev").into()),
        ("PATH", std::env::var_os("PATH").unwrap()),
    ];
    let mut child = Command::new("unshare")
        .args(["-m", "--", "/bin/sh", "-c", &script])
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = child.id();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = lines.next().transpose().unwrap().unwrap_or_default();
    if let Some(forked) = said.strip_prefix("pid ") {
        pid = forked.parse().unwrap();
        said = lines.next().transpose().unwrap().unwrap_or_default();
    }
    Running { child, pid, said }
}

fn can_run() -> bool {
    let may = Command::new("unshare").args(["-m", "true"]).status();
    let can = nix::unistd::geteuid().is_root() && may.is_ok_and(|status| status.success());
    if !can {
        println!("skipped: mount namespaces take root with CAP_SYS_ADMIN");
    }
    can
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("vgpu-escape-").tempdir();
    folder.unwrap()
}

/// Waits for an event that says this of an object.
fn told(world: &World, kind: &str, name: &str, text: &str) -> String {
    found(&format!("told of {kind} {name}: {text}"), || {
        let events = world.events();
        let found = events.iter().find(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.involved_object.kind.as_deref() == Some(kind)
                && event.involved_object.name.as_deref() == Some(name)
                && message.contains(text)
        });
        match found {
            Some(found) => Ok(found.message.clone().unwrap_or_default()),
            None => Err(events),
        }
    })
}

#[test]
fn pods_that_bypass_their_limits_or_never_asked_are_evicted() {
    if !can_run() {
        return;
    }
    let folder = folder();
    let policy = Policy::Evict {
        dry_run: false,
        grace: Duration::from_secs(300),
        every: Duration::ZERO,
    };
    let world = World::new(folder.path(), false, policy);
    let mut running = Vec::new();
    for pod in [OTHER, POD] {
        let raw = Trick {
            program: "raw",
            pod,
            ..trick("a static program", File, "", Blocked)
        };
        let started = start(&world, &raw);
        let cgroup = format!("0::/kubepods/burstable/pod{pod}/{CONTAINER}\n");
        world.show(started.pid, &cgroup);
        assert!(world.row(started.pid).verdict.is_bad());
        running.push(started);
    }
    told(&world, "Pod", "guest", "its pod asked for no GPU");
    told(&world, "Pod", "escape", "of container main holds");
    let pods: kube::Api<Pod> = kube::Api::namespaced(world.api.clone(), "ml");
    let gone = |name: &str| {
        let pod = world.runtime.block_on(pods.get_opt(name)).unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    found("evicted", || {
        let both = gone("escape") && gone("guest");
        if both { Ok(()) } else { Err(world.events()) }
    });
    for mut started in running {
        drop(started.child.stdin.take());
        started.child.wait().unwrap();
    }
}

/// The library is asked as it should be, so that nothing is wrong with what the process has mapped; what it takes then is
/// seen by what the driver says that it holds.
#[test]
fn uncharged_memory_is_found_after_charges_are_cleared() {
    if !can_run() {
        return;
    }
    let Some(home) = std::env::var_os("VGPU_ESCAPE_HOME").map(PathBuf::from) else {
        // A process of its own: the driver that it asks is chosen by the environment. (The dynamic loader looks once
        // whether a folder is there.)
        let folder = folder();
        std::fs::create_dir(folder.path().join("sim")).unwrap();
        let status = only("attest::uncharged_memory_is_found_after_charges_are_cleared")
            .env("VGPU_ESCAPE_HOME", folder.path())
            .env("VGPU_SIM_BOARD", folder.path().join("board"))
            .env("LD_LIBRARY_PATH", folder.path().join("sim"))
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    };
    let world = World::new(&home, true, Policy::Report);
    let driver = NvmlGpus::open().unwrap();
    for argument in ["mixed", "zero", "vanish"] {
        let trick = trick(argument, File, argument, Blocked);
        let Running {
            mut child,
            pid,
            said,
        } = start(&world, &trick);
        world.show(
            pid,
            &format!("0::/kubepods/burstable/pod{POD}/{CONTAINER}\n"),
        );
        let row = world.row(pid);
        let owners = world.attestation.picture().owners.clone();
        assert_eq!(
            owners.get(&pid),
            Some(&world.path("containers/v1")),
            "{argument}"
        );

        let held = driver.processes().unwrap();
        let instance = Instance::open(&world.path("containers/v1")).unwrap();
        let mut view = supervisor::view::read(&instance).unwrap();
        view.account(&held);
        reconcile::add_slotless(&mut view, &held, &owners);
        let gaps = reconcile::gaps(&view, &held, &owners);

        println!(
            "{argument:8} said {said:8} {:?}, {} MiB not charged",
            row.verdict,
            view.unaccounted_bytes >> 20
        );
        // 600 MiB and the context were charged once; a process that clears its charges is refused more, and
        // is found all the same.
        assert!(view.unaccounted_bytes >= 600 << 20, "{argument}: {gaps:?}");
        assert_eq!(gaps[0].holders[0].pid, pid, "{argument}");
        if argument == "mixed" {
            assert_eq!(said, "got", "it goes past the library");
            let text = told(&world, "Pod", "escape", "not charged to it");
            assert!(
                text.contains(&format!("process {pid} (escape) holds")),
                "{text}"
            );
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        world.hide(pid);
    }
}

#[test]
fn every_bypass_is_refused_or_reported() {
    if !can_run() {
        return;
    }
    let folder = folder();
    let world = World::new(folder.path(), false, Policy::Report);
    // `cp` writes it: what this process has open for writing may also be open in a child that another test has just forked,
    // and the kernel executes no such file.
    let (from, to) = (world.path("escape"), world.path("setuid"));
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
    std::fs::set_permissions(world.path("setuid"), PermissionsExt::from_mode(0o4755)).unwrap();
    let mut wrong = Vec::new();
    for trick in TRICKS {
        let Running {
            mut child,
            pid,
            said,
        } = start(&world, trick);
        let cgroup = match trick.pod {
            "" => "0::/system.slice/some.service\n".to_owned(),
            pod => format!("0::/kubepods/burstable/pod{pod}/{CONTAINER}\n"),
        };
        world.show(pid, &cgroup);
        let row = world.row(pid);
        let comes = match row.verdict {
            Verdict::Managed if said == "refused" => Blocked,
            verdict => Seen(verdict, row.reason),
        };
        println!("{:52} said {said:8} {comes:?}", trick.name);
        if comes != trick.comes {
            wrong.push(format!(
                "{}: said {said}, {comes:?} and not {:?}",
                trick.name, trick.comes
            ));
        }
        // None is silent: what was given more than its limit does not count as managed.
        if said != "refused" && matches!(row.verdict, Verdict::Managed) {
            wrong.push(format!(
                "{}: said {said}, and counts as managed",
                trick.name
            ));
        }
        if trick.pod == POD {
            let owner = (
                row.owner.namespace.as_str(),
                row.owner.pod.as_str(),
                row.owner.container.as_str(),
            );
            assert_eq!(owner, ("ml", "escape", "main"), "{}", trick.name);
        }
        // Its input ends, and so do its children.
        drop(child.stdin.take());
        child.wait().unwrap();
        world.hide(pid);
    }
    assert_eq!(wrong, Vec::<String>::new());

    // Pods and node were told, and there is no event about an honest program.
    let said = |kind: &str, name: &str, text: &str| drop(told(&world, kind, name, text));
    said("Pod", "escape", "of container main holds");
    said("Pod", "guest", "its pod asked for no GPU");
    said("Node", "n1", "");
}
