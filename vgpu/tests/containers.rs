//! Containers of container engines: the hook with hostile input, on a container made by hand, and a real Podman; and a
//! service of a real systemd.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;
use crate::program::compiled;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Ended, Machine, VGPU, copy_program, is_root, libraries, library, until};
use serde_json::json;

const GPU: &str = "GPU-a3faf39f-125e-5a58-d006-d933d89baa4b";

/// Runs a hook with this state, as a runtime does.
fn hook(machine: &Machine, moment: &str, state: &[u8]) -> Ended {
    hook_on(machine, moment, state, GPU)
}

/// The same where GPU 0 has this UUID.
pub(crate) fn hook_on(machine: &Machine, moment: &str, state: &[u8], uuid: &str) -> Ended {
    hook_by(&mut machine.vgpu(["oci-hook", moment]), moment, state, uuid)
}

/// The same by this command.
pub(crate) fn hook_by(command: &mut Command, moment: &str, state: &[u8], uuid: &str) -> Ended {
    if moment == "create" {
        command.arg(format!("--gpu=0={uuid}=17179869184"));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A hook that refuses a large state does not read all of it.
    child.stdin.take().unwrap().write_all(state).ok();
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        signal: None,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn hostile_state_is_refused_and_leaves_nothing() {
    let machine = Machine::new();
    let huge = vec![b'['; 3 << 20];
    let own = std::process::id();
    let no_bundle = format!(r#"{{"id":"a","pid":{own},"bundle":"/nonexistent/bundle"}}"#);
    let dots = format!(r#"{{"id":"a","pid":{own},"bundle":"/tmp/../etc"}}"#);
    for (state, code, part) in [
        (&b""[..], 2, "is not the state of a container"),
        (b"\xff\xfe\x00", 2, "is not the state of a container"),
        (&huge, 2, "larger than 1048576 bytes"),
        (
            br#"{"id":"../../x","pid":1,"bundle":"/b"}"#,
            2,
            "the state's id",
        ),
        (dots.as_bytes(), 2, "without .."),
        (
            br#"{"id":"a","pid":4294967295,"bundle":"/b"}"#,
            2,
            "is no process of this machine",
        ),
        (
            no_bundle.as_bytes(),
            1,
            "cannot open /nonexistent/bundle/config.json",
        ),
    ] {
        let ended = hook(&machine, "create", state);
        assert_eq!(ended.code, Some(code), "{part}: {ended:?}");
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
        assert!(ended.err.starts_with("vgpu oci-hook: "), "{}", ended.err);
    }
    assert_eq!(machine.names(), [""; 0]);
    let ended = hook(&machine, "remove", br#"{"id":"never-made","bundle":"/b"}"#);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
}

/// A container as a runtime has it when it runs the hook: a process in a mount namespace, and a bundle.
pub(crate) struct Handmade {
    pub(crate) process: Child,
    bundle: PathBuf,
    id: String,
}

impl Handmade {
    fn new(machine: &Machine, id: &str, env: &[&str]) -> Self {
        Self::on(machine, id, env, GPU)
    }

    /// The same with the GPU of this UUID.
    pub(crate) fn on(machine: &Machine, id: &str, env: &[&str], uuid: &str) -> Self {
        let process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "1000"])
            .spawn()
            .unwrap();
        let comm = format!("/proc/{}/comm", process.id());
        until("the process is in its namespace", || {
            fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n")
        });
        let bundle = machine.path(id);
        let root = bundle.join("rootfs");
        fs::create_dir_all(root.join("etc/vgpu")).unwrap();
        fs::create_dir_all(root.join("run/vgpu")).unwrap();
        fs::write(root.join("run/vgpu/region"), "").unwrap();
        let given = format!("VGPU_GPU_0={uuid}");
        let env: Vec<&str> = [&[given.as_str()], env].concat();
        let config = json!({
            "root": {"path": "rootfs"},
            "process": {"args": ["python", "x.py"], "env": env},
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        Self {
            process,
            bundle,
            id: id.to_owned(),
        }
    }

    pub(crate) fn state(&self) -> Vec<u8> {
        json!({"ociVersion": "1.0.2", "id": self.id, "pid": self.process.id(), "bundle": self.bundle})
            .to_string()
            .into_bytes()
    }

    /// A file of the container, as its programs see it.
    fn inside(&self, path: &str) -> PathBuf {
        let root = self.bundle.join("rootfs");
        PathBuf::from(format!(
            "/proc/{}/root{}{path}",
            self.process.id(),
            root.display()
        ))
    }

    fn end(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Drop for Handmade {
    fn drop(&mut self) {
        self.end();
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn the_hook_mounts_a_containers_own_files_and_the_sweep_removes_them() {
    if !is_root() {
        println!("skipped: mount namespaces need root");
        return;
    }
    let machine = Machine::new();
    let share = ["VGPU_MEMORY=4Gi", "VGPU_CORES=30", "VGPU_NAME=web"];
    let mut first = Handmade::new(&machine, "first", &share);
    let mut second = Handmade::new(&machine, "second", &share);
    let unlimited = Handmade::new(&machine, "unlimited", &[]);

    for container in [&first, &second, &unlimited] {
        let ended = hook(&machine, "create", &container.state());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    }

    // Two containers of one name share nothing.
    assert_eq!(machine.names(), ["unlimited", "web", "web-second"]);
    for (container, name) in [(&first, "web"), (&second, "web-second")] {
        let own = machine.containers().join(name);
        for (inside, file) in [
            ("/etc/vgpu/limits", "limits"),
            ("/run/vgpu/region", "region"),
        ] {
            assert_eq!(inode(&container.inside(inside)), inode(&own.join(file)));
        }
        let written = fs::write(container.inside("/etc/vgpu/limits"), "x").unwrap_err();
        assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(!container.bundle.join("rootfs/etc/vgpu/limits").exists());
    }
    let top = machine.top();
    let containers = top["containers"].as_array().unwrap();
    let web = containers.iter().find(|one| one["name"] == "web").unwrap();
    assert_eq!(
        (&web["state"], &web["container"]),
        (&json!("running"), &json!("web"))
    );
    assert_eq!(web["devices"][0]["limit_bytes"], 4_u64 << 30);
    assert_eq!(web["devices"][0]["cap_percent"], 30);
    let whole = containers.iter().find(|one| one["name"] == "unlimited");
    assert_eq!(whole.unwrap()["devices"][0]["limit_bytes"], 0);
    let set = machine.run(&["set", "web", "--gpumem", "5Gi"]);
    assert_eq!(
        set.out, "web GPU 0: limit 4Gi -> 5Gi, used 0\n",
        "{}",
        set.err
    );

    // A runtime runs the second hook when the container has ended; without it the next command sweeps.
    assert_eq!(hook(&machine, "remove", &first.state()).code, Some(0));
    assert_eq!(
        machine.names().len(),
        3,
        "a running container keeps its directory"
    );
    first.end();
    assert_eq!(hook(&machine, "remove", &first.state()).code, Some(0));
    assert_eq!(machine.names(), ["unlimited", "web-second"]);
    second.end();
    machine.top();
    assert_eq!(machine.names(), ["unlimited"]);
}

#[test]
fn a_container_with_very_long_arguments_keeps_its_limits() {
    if !is_root() {
        println!("skipped: mount namespaces need root");
        return;
    }
    let machine = Machine::new();
    let long = Handmade::new(&machine, "long", &["VGPU_MEMORY=4Gi"]);
    let file = long.bundle.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["process"]["args"] = json!(["python", "-c", "#".repeat(100_000), "#".repeat(200_000)]);
    fs::write(&file, config.to_string()).unwrap();
    let ended = hook(&machine, "create", &long.state());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));

    let top = machine.top();

    assert_eq!(top["containers"][0]["name"], "long");
    assert!(long.inside("/etc/vgpu/limits").exists());
}

#[test]
fn a_command_in_another_pid_namespace_removes_no_running_container() {
    if !is_root() {
        println!("skipped: mount namespaces need root");
        return;
    }
    let machine = Machine::new();
    let mut container = Handmade::new(&machine, "web", &["VGPU_MEMORY=4Gi"]);
    let ended = hook(&machine, "create", &container.state());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));

    // As in a container of monitoring that has the board mounted.
    let mut apart = machine.command("unshare");
    apart.args(["--pid", "--fork", "--mount-proc", VGPU, "top", "--json"]);
    let top = common::ended(&mut apart);

    assert_eq!(top.code, Some(0), "{top:?}");
    assert_eq!(machine.names(), ["web"]);
    container.end();
    machine.top();
    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn links_of_an_image_lead_nowhere_outside_it() {
    if !is_root() {
        println!("skipped: mount namespaces need root");
        return;
    }
    let machine = Machine::new();
    let outside = machine.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("region"), "theirs").unwrap();
    for (id, place, target) in [
        ("absolute", "etc/vgpu", outside.display().to_string()),
        ("dots", "etc/vgpu", String::from("../../../outside")),
        ("parent", "run/vgpu", String::from("../../../outside")),
        ("magic", "etc/vgpu", String::from("/proc/self/root")),
    ] {
        let container = Handmade::new(&machine, id, &["VGPU_MEMORY=4Gi"]);
        let place = container.bundle.join("rootfs").join(place);
        fs::remove_dir_all(&place).unwrap();
        symlink(&target, &place).unwrap();

        let ended = hook(&machine, "create", &container.state());

        assert_eq!(ended.code, Some(1), "{id}: {ended:?}");
        assert!(
            ended.err.contains("in the container's root directory"),
            "{}",
            ended.err
        );
        let theirs = format!("/proc/{}/root{}", container.process.id(), outside.display());
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1, "{id}");
        assert_eq!(
            fs::read_to_string(format!("{theirs}/region")).unwrap(),
            "theirs"
        );
        assert_eq!(machine.names(), [""; 0], "{id} left its directory");
    }
    // A container in the host's own mount namespace would take the host's mounts.
    let container = Handmade::new(&machine, "host", &["VGPU_MEMORY=4Gi"]);
    let state = json!({"id": "host", "pid": std::process::id(), "bundle": container.bundle});
    let ended = hook(&machine, "create", state.to_string().as_bytes());
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("no mount namespace of its own"),
        "{}",
        ended.err
    );
    assert_eq!(machine.names(), [""; 0]);
}

/// A root directory with a static shell, the program and the libraries that it loads; nothing of vgpu.
fn image(machine: &Machine, program: &Path) -> PathBuf {
    let root = machine.path("image");
    for dir in ["bin", "etc", "run", "tmp", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    copy_program(Path::new("/usr/bin/busybox"), &root.join("bin/busybox"));
    for name in ["sh", "sleep", "echo", "cat"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    copy_program(program, &root.join("bin/client"));
    let files = ["libcuda.so", "libnvidia_ml.so", "libvgpu.so"].map(|file| libraries().join(file));
    let listed = Command::new("ldd")
        .arg(program)
        .args(files)
        .output()
        .unwrap();
    for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
        if word.starts_with("/lib") && !word.ends_with(':') {
            let to = root.join(word.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(word, to).unwrap();
        }
    }
    root
}

/// NVIDIA's specification, as the toolkit would write it for the simulated driver.
fn vendor(machine: &Machine) -> String {
    let mount = |from: PathBuf, to: &str| json!({"hostPath": from, "containerPath": to, "options": ["rw", "bind"]});
    let device =
        |name: &str| json!({"name": name, "containerEdits": {"env": [format!("VENDOR_{name}=1")]}});
    json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [device("0"), device("1")],
        "containerEdits": {
            "env": [
                "VGPU_SIM_BOARD=/run/sim/board",
                "VGPU_SIM_PROC=/run/node-proc",
                "LD_LIBRARY_PATH=/usr/lib/sim",
            ],
            "mounts": [
                mount(libraries().join("libcuda.so"), "/usr/lib/sim/libcuda.so.1"),
                mount(libraries().join("libnvidia_ml.so"), "/usr/lib/sim/libnvidia-ml.so.1"),
                mount(machine.path("hardware"), "/run/sim"),
                // A real driver knows by itself which processes have ended.
                mount(PathBuf::from("/proc"), "/run/node-proc"),
            ],
        },
    })
    .to_string()
}

/// What does not depend on one engine: in a mount namespace of its own, since engines read specifications from fixed
/// directories.
const WORLD: &str = r#"
cd "$WORLD"
mkdir -p /run/cdi hardware && mount -t tmpfs tmpfs /run/cdi && cp nvidia.json /run/cdi/
export VGPU_SIM_BOARD=$WORLD/hardware/board
"$VGPU" cdi --output /run/cdi/vgpu.json --vendor-dir /run/cdi --files "$WORLD/files" >&2 || exit 70
podman() {
    command podman --root "$WORLD/storage" --runroot "$WORLD/run" --tmpdir "$WORLD/tmp" --storage-driver vfs --runtime runc \
        --cgroup-manager cgroupfs --events-backend none "$@"
}
run() {
    podman run --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
}
"#;

const STEPS: &str = r#"
echo "== one"
run --rm --name one --device vgpu.io/gpu=0 -e VGPU_MEMORY=4Gi -e VGPU_CORES=30 --rootfs "$WORLD/image" \
    /bin/sh -c '(echo total; echo alloc 3000; echo alloc 2000; echo free; echo alloc 3500) | client
                cat /etc/ld.so.preload; echo x 2>/dev/null > /etc/vgpu/limits || echo read-only'
echo "== two"
run -d --name two --device vgpu.io/gpu=all -e VGPU_MEMORY=2Gi --rootfs "$WORLD/image" \
    /bin/sh -c '(echo alloc 1000; echo alloc 5000; echo alloc 5000; sleep 1000) | client' > id
for i in $(seq 150); do "$VGPU" oom two 2>/dev/null | grep -q cuMemAlloc && break; sleep 0.1; done
"$VGPU" top --json > top.json; podman logs two >&2
"$VGPU" set two --gpumem 3Gi
"$VGPU" oom two | head -1 | grep -o 'two  cuMem.* of process'
echo "== restart"
podman restart -t 0 two > /dev/null
for i in $(seq 150); do "$VGPU" oom two 2>/dev/null | grep -q cuMemAlloc && break; sleep 0.1; done
ls "$VGPU_BOARD/0"
echo "== kill"
podman kill two > /dev/null; podman wait two > /dev/null; podman rm -f -t 0 two > /dev/null
ls "$VGPU_BOARD/0"
echo "== bad"
for bad in VGPU_MEMORY=4 VGPU_MEM=4Gi; do
    run --rm --device vgpu.io/gpu=0 -e $bad --rootfs "$WORLD/image" /bin/echo started 2>&1 | grep -o 'vgpu oci-hook: [^;]*'
done
ls "$VGPU_BOARD/0"
echo "== no hook"
sed "s|\"$VGPU\"|\"/bin/true\"|" /run/cdi/vgpu.json > /run/cdi/new && mv /run/cdi/new /run/cdi/vgpu.json
run --rm --device vgpu.io/gpu=0 --rootfs "$WORLD/image" /bin/client < /dev/null
podman rm -f -t 0 -a > /dev/null
"#;

/// Why this machine cannot run the test; nothing if it can.
fn missing(programs: &[&str]) -> Option<String> {
    if !is_root() {
        return Some(String::from("a container engine needs root"));
    }
    let is_there = |program: &&&str| {
        let dirs = ["/usr/bin", "/usr/sbin", "/bin", "/usr/lib/systemd"];
        dirs.iter().any(|dir| Path::new(dir).join(program).exists())
    };
    let missing: Vec<_> = programs
        .iter()
        .filter(|program| !is_there(program))
        .collect();
    (!missing.is_empty()).then(|| format!("not installed: {missing:?}"))
}

#[test]
fn podman_gives_a_container_its_share_with_nothing_in_the_image() {
    if let Some(why) = missing(&["podman", "conmon", "runc", "busybox", "unshare"]) {
        println!("skipped: {why}");
        return;
    }
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    image(&machine, &program);
    fs::create_dir(machine.path("hardware")).unwrap();
    fs::write(machine.path("nvidia.json"), vendor(&machine)).unwrap();
    let script = format!("{WORLD}{STEPS}");
    let mut command = machine.command("unshare");
    command
        .args(["--mount", "bash", "-c", &script])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("WORLD", machine.dir.path())
        .env("VGPU", VGPU);

    let ended = common::ended(&mut command);

    let preload = "/usr/local/vgpu/libvgpu.so";
    let expected = format!(
        "== one\nready\n4096\nok\n2\nok\nok\n{preload}\nread-only\n\
         == two\ntwo GPU 0: limit 2Gi -> 3Gi, used 1.26Gi\ntwo GPU 1: limit 2Gi -> 3Gi, used 0\n\
         two  cuMemAlloc_v2 of process\n\
         == restart\ntwo\n== kill\n== bad\n\
         vgpu oci-hook: VGPU_MEMORY: size \"4\" has no unit\n\
         vgpu oci-hook: the container's environment has VGPU_MEM, which vgpu does not know\n\
         == no hook\nno context: 800\n"
    );
    assert_eq!(ended.out, expected, "{}", ended.err);
    let top: serde_json::Value =
        serde_json::from_slice(&fs::read(machine.path("top.json")).unwrap()).unwrap();
    let two = &top["containers"][0];
    assert_eq!(
        (&two["name"], &two["state"]),
        (&json!("two"), &json!("running"))
    );
    assert_eq!(two["devices"][0]["uuid"], top["gpus"][0]["uuid"]);
    assert_eq!(two["processes"][0]["name"], "client");
}

#[test]
fn examples_of_services_are_what_systemd_accepts() {
    if let Some(why) = missing(&["systemd-analyze"]) {
        println!("skipped: {why}");
        return;
    }
    let machine = Machine::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    for scope in ["--system", "--user"] {
        let service = fs::read_to_string(examples.join("serve.service")).unwrap();
        let share = fs::read_to_string(examples.join("vgpu-share.conf")).unwrap();
        let here = |text: String| text.replace("/usr/local/bin/vgpu", VGPU);
        let dir = machine.path(scope);
        fs::create_dir_all(dir.join("other.service.d")).unwrap();
        fs::write(dir.join("serve.service"), here(service)).unwrap();
        fs::write(
            dir.join("other.service"),
            "[Service]\nType=notify\nExecStart=/bin/true\n",
        )
        .unwrap();
        fs::write(dir.join("other.service.d/vgpu-share.conf"), here(share)).unwrap();
        for unit in ["serve.service", "other.service"] {
            let ended = common::ended(
                machine
                    .command("systemd-analyze")
                    .args([scope, "--man=no", "--generators=no", "verify"])
                    .arg(dir.join(unit))
                    .env("XDG_RUNTIME_DIR", machine.dir.path()),
            );
            let own: Vec<_> = ended
                .err
                .lines()
                .filter(|line| line.contains(unit))
                .collect();
            assert_eq!(
                (ended.code, own),
                (Some(0), vec![]),
                "{scope} {unit}: {ended:?}"
            );
        }
    }
}

/// Hierarchies of control groups in which systemd makes groups.
const GROUPS: [&str; 4] = ["systemd", "pids", "memory", "unified"];

/// A systemd of its own: process 1 of a process namespace, with units of one directory only.
const SYSTEMD: &str = r#"
for hierarchy in $HIERARCHIES; do
    group=/sys/fs/cgroup/$hierarchy/vgpu-test-$$
    [ -d /sys/fs/cgroup/$hierarchy ] && mkdir "$group" && echo $$ > "$group/cgroup.procs"
done
exec unshare --mount --pid --fork --kill-child --cgroup --mount-proc bash -c '
    mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/systemd
    umount /sys/fs/cgroup/unified 2>/dev/null
    umount /sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
    export SYSTEMD_UNIT_PATH=$WORLD/units SYSTEMD_GENERATOR_PATH=/nonexistent SYSTEMD_LOG_TARGET=console container=vgpu
    export SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/nonexistent
    exec /lib/systemd/systemd --system --unit=test.target'
"#;

#[test]
fn a_service_of_systemd_has_its_share_and_ends_with_its_signal() {
    if let Some(why) = missing(&["systemd", "unshare"]) {
        println!("skipped: {why}");
        return;
    }
    if !Path::new("/sys/fs/cgroup/systemd").is_dir() {
        println!(
            "skipped: a systemd beside the machine's own is tried with its named cgroup hierarchy only"
        );
        return;
    }
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let units = machine.path("units");
    fs::create_dir_all(units.join("serve.service.d")).unwrap();
    fs::write(units.join("test.target"), "[Unit]\nWants=serve.service\n").unwrap();
    let out = machine.path("out");
    let service = format!(
        "[Unit]\nDefaultDependencies=no\n[Service]\nEnvironment=VGPU_BOARD={} VGPU_LIBRARY={} LD_LIBRARY_PATH={} \
         VGPU_SIM_BOARD={}\nExecStart=/bin/false\n",
        machine.board.display(),
        library().display(),
        machine.path("sim").display(),
        machine.path("sim-board").display(),
    );
    fs::write(units.join("serve.service"), service).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    let share = fs::read_to_string(examples.join("vgpu-share.conf")).unwrap();
    let command = format!(
        "/bin/sh -c 'trap \"echo stopped >> {out}; exit 0\" TERM; \
         (echo total; echo alloc 9000; echo alloc 1000; sleep 1000) | {program} >> {out} & \
         while :; do sleep 0.05; done'",
        out = out.display(),
        program = program.display()
    );
    let share = share
        .replace("/usr/local/bin/vgpu", VGPU)
        .replace("/usr/bin/python3 -m http.server", &command);
    assert!(share.contains("trap"));
    fs::write(units.join("serve.service.d/vgpu-share.conf"), share).unwrap();
    let mut systemd = machine
        .command("bash")
        .args(["-c", SYSTEMD])
        .env("HIERARCHIES", GROUPS.join(" "))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("WORLD", machine.dir.path())
        .stdout(Stdio::null())
        .stderr(fs::File::create(machine.path("log")).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&out).unwrap_or_default();
    let ends = |process: &mut Child| process.try_wait().unwrap().is_some();

    until("the service has allocated", || {
        said().contains("ok") || ends(&mut systemd)
    });
    let has_ended = ends(&mut systemd);
    let top = machine.run(&["top", "--once"]);
    // Process 1 ends when the machine is to halt; the service's processes get the signal first.
    let group = format!("vgpu-test-{}", systemd.id());
    let first = fs::read_to_string(format!("/proc/{0}/task/{0}/children", systemd.id()));
    let first = first.unwrap_or_default();
    Command::new("kill")
        .args(["-s", "RTMIN+13", first.trim()])
        .status()
        .ok();
    until("the service has ended", || {
        said().contains("stopped") || has_ended
    });
    until("its directory is gone", || machine.names().is_empty());
    systemd.kill().ok();
    systemd.wait().ok();
    // The kernel ends the namespace's processes one after the other.
    until("its control groups are empty", || {
        let gone = GROUPS.map(|hierarchy| {
            let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(&group);
            for below in ["system.slice/serve.service", "system.slice", "init.scope"] {
                fs::remove_dir(group.join(below)).ok();
            }
            fs::remove_dir(&group).ok();
            !group.exists()
        });
        gone == [true; GROUPS.len()]
    });

    let log = fs::read_to_string(machine.path("log")).unwrap_or_default();
    assert_eq!(said(), "ready\n8192\n2\nok\nstopped\n", "{log}");
    assert!(top.out.contains("\nserve "), "{}", top.out);
}

/// The service manager of one user, as `user@UID.service` starts it, with a home directory and a control group of the
/// user's. The first process waits for it.
const USER_SYSTEMD: &str = r#"
group=/sys/fs/cgroup/systemd/vgpu-test-$$
mkdir "$group" && chown 65534:65534 "$group" "$group/cgroup.procs" "$group/tasks" && echo $$ > "$group/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --cgroup --mount-proc bash -c '
    # A manager of one user starts only where this directory says that systemd runs the machine.
    mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system
    umount /sys/fs/cgroup/unified 2>/dev/null
    umount /sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
    setpriv --reuid 65534 --regid 65534 --clear-groups /lib/systemd/systemd --user
    exit # the manager is not the first process
'
"#;

#[test]
fn a_service_of_one_user_has_its_share_and_ends_when_it_is_stopped() {
    if let Some(why) = missing(&["systemd", "unshare", "setpriv", "systemctl", "nsenter"]) {
        println!("skipped: {why}");
        return;
    }
    if !Path::new("/sys/fs/cgroup/systemd").is_dir() {
        println!("skipped: a systemd of one user is tried with the named cgroup hierarchy only");
        return;
    }
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    fs::set_permissions(machine.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let home = machine.path("home");
    let units = home.join(".config/systemd/user");
    fs::create_dir_all(units.join("default.target.wants")).unwrap();
    fs::create_dir(home.join("runtime")).unwrap();
    let out = home.join("out");
    // The file of the examples, with the paths of this machine and a command that shows its share.
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    let command = format!(
        "/bin/sh -c 'trap \"echo stopped >> {out}; exit 0\" TERM; \
         (echo total; echo alloc 9000; echo alloc 1000) | {program} >> {out}; \
         while :; do sleep 0.05; done'",
        out = out.display(),
        program = program.display()
    );
    let service = fs::read_to_string(examples.join("serve.service")).unwrap();
    let service = service
        .replace("/usr/local/bin/vgpu", VGPU)
        .replace("/usr/bin/python3 -m http.server", &command);
    assert!(service.contains("trap"));
    fs::write(units.join("serve.service"), service).unwrap();
    symlink(
        "../serve.service",
        units.join("default.target.wants/serve.service"),
    )
    .unwrap();
    for place in ["", "runtime", ".config/systemd/user"] {
        chown(home.join(place), Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(home.join("runtime"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::create_dir(&machine.board).unwrap();
    fs::set_permissions(&machine.board, PermissionsExt::from_mode(0o1777)).unwrap();
    let about = |command: &mut Command| {
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", home.join("runtime"))
            .env("VGPU_SIM_BOARD", home.join("sim-board"));
    };
    let mut systemd = machine.command("bash");
    about(&mut systemd);
    let mut systemd = systemd
        .args(["-c", USER_SYSTEMD])
        .env("SYSTEMD_LOG_TARGET", "console")
        .stdout(Stdio::null())
        .stderr(fs::File::create(machine.path("log")).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&out).unwrap_or_default();
    let ends = |process: &mut Child| process.try_wait().unwrap().is_some();

    until("the service has allocated", || {
        said().contains("ok") || ends(&mut systemd)
    });
    let has_ended = ends(&mut systemd);
    let top = machine.run(&["top", "--json"]);
    let first = fs::read_to_string(format!("/proc/{0}/task/{0}/children", systemd.id()));
    let first = first.unwrap_or_default();
    let mut stop = machine.command("nsenter");
    about(&mut stop);
    stop.args(["--target", first.trim(), "--mount", "--pid", "--cgroup"]);
    stop.args(["setpriv", "--reuid", "65534", "--regid", "65534"]);
    stop.args(["--clear-groups", "systemctl", "--user", "stop", "serve"]);
    let stopped = common::ended(&mut stop);
    until("the service has ended", || {
        said().contains("stopped") || has_ended
    });
    let own = machine.board.join("65534");
    let is_empty = || {
        let names = fs::read_dir(&own).map(|entries| entries.flatten().collect::<Vec<_>>());
        names.is_ok_and(|names| names.iter().all(|entry| entry.file_name() != "serve"))
    };
    until("its directory is gone", || is_empty() || has_ended);
    systemd.kill().ok();
    systemd.wait().ok();
    let group = format!("/sys/fs/cgroup/systemd/vgpu-test-{}", systemd.id());
    until("its control groups are empty", || {
        Command::new("find")
            .args([group.as_str(), "-depth", "-type", "d", "-delete"])
            .stderr(Stdio::null())
            .status()
            .ok();
        !Path::new(&group).exists()
    });

    let log = fs::read_to_string(machine.path("log")).unwrap_or_default();
    assert_eq!(said(), "ready\n8192\n2\nok\nstopped\n", "{log}");
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let top: serde_json::Value = serde_json::from_str(&top.out).unwrap();
    let shown = &top["containers"][0];
    assert_eq!(
        (&shown["name"], &shown["owner_uid"]),
        (&json!("serve"), &json!(65534))
    );
    assert_eq!(shown["devices"][0]["cap_percent"], 30);
}
