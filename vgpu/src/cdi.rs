//! `vgpu cdi`: a CDI specification of this machine's GPUs for container engines. Owns what the specification says, and
//! the small files that every container gets.
//!
//! Each device contains what the GPU vendor's own specification gives for it. The places of a container's limits hold
//! files with which the library lets no program use a GPU; the hook covers them with the container's own. An engine
//! that runs no hooks therefore starts a container without GPU memory, and never one without a limit.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::{Map, Value, json};
use supervisor::gpu::{Gpu, Gpus, NvmlGpus};
use supervisor::instance::{INSIDE, INSIDE_LIBRARY, INSIDE_REGION, LIMITS, REGION};
use supervisor::vendor::{self, Parts, Vendor, Wanted};

use crate::args::containers::{CdiArgs, DefaultShare};
use crate::failure::Failure;
use crate::library;
use crate::oci::{GIVEN, KIND};
use crate::values::EngineGpu;

/// The file that a container has as `/etc/ld.so.preload`.
const PRELOAD: &str = "ld.so.preload";
/// The directory that is at the place of a container's own until the hook covers it.
const CLOSED: &str = "closed";
/// How long an engine waits for the hook, seconds.
const TIMEOUT_S: u32 = 20;

/// The files of the host that a container gets.
struct HostFiles {
    program: PathBuf,
    library: PathBuf,
    dir: PathBuf,
    board: Option<PathBuf>,
}

pub(crate) fn run(args: &CdiArgs) -> Result<ExitCode, Failure> {
    let library = library::find(args.library.as_deref())?;
    let gpus = NvmlGpus::open()
        .map_err(no_gpu)?
        .inventory()
        .map_err(no_gpu)?;
    if gpus.gpus.is_empty() || !gpus.faults.is_empty() {
        return Err(Failure::Failed(anyhow!(
            "the driver shows {} GPUs{}{}; nothing was written",
            gpus.gpus.len(),
            if gpus.faults.is_empty() {
                ""
            } else {
                ", and these do not answer: "
            },
            gpus.faults.join("; ")
        )));
    }
    let capabilities = Path::new(vendor::CAPABILITIES);
    let output = absolute(&args.output)?;
    let vendor = Vendor {
        dirs: &args.vendor_dir,
        kind: &args.vendor_kind,
        capabilities,
        is_ours: |file| {
            file == "vgpu.json" || (file.starts_with("vgpu-") && file.ends_with(".json"))
        },
    };
    let wanted: Vec<Wanted> = gpus.gpus.iter().map(wanted).collect();
    let parts = vendor.parts(&wanted).map_err(anyhow::Error::from)?;
    let files = HostFiles {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        library,
        dir: absolute(&args.files)?,
        board: args.board.board.as_deref().map(absolute).transpose()?,
    };
    let spec = spec(&gpus.gpus, parts, &files, &args.default_share);
    let mut text =
        serde_json::to_vec_pretty(&spec).context("cannot write the specification as JSON")?;
    text.push(b'\n');
    if args.print {
        std::io::stdout().write_all(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    make_files(&files.dir)?;
    let dir = output.parent().unwrap_or(Path::new("/"));
    make_dir(dir)?;
    replace(&output, &text)?;
    writeln!(
        std::io::stdout(),
        "{}: {KIND}={}. Try: podman run --device {KIND}=0 -e VGPU_MEMORY=4Gi -e VGPU_CORES=30 IMAGE COMMAND",
        output.display(),
        names(&gpus.gpus).join(", ")
    )?;
    Ok(ExitCode::SUCCESS)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{}: not a path", path.display()))
}

fn no_gpu(error: supervisor::gpu::GpuError) -> Failure {
    Failure::Failed(anyhow!(
        "{error}. The NVIDIA driver must be installed on this machine"
    ))
}

fn names(gpus: &[Gpu]) -> Vec<String> {
    let numbers = gpus.iter().map(|gpu| gpu.index.to_string());
    numbers.chain([String::from("all")]).collect()
}

fn wanted(gpu: &Gpu) -> Wanted {
    Wanted {
        uuid: gpu.uuid.clone(),
        gpu: gpu.uuid.clone(),
        index: Some(gpu.index),
        minor: None,
        instance: None,
    }
}

/// The specification.
fn spec(gpus: &[Gpu], vendor: Parts, files: &HostFiles, default: &DefaultShare) -> Value {
    let Parts { all, each } = vendor;
    let (version, mut common) = (all.version, all.edits);
    put_mounts(&mut common, files);
    put_env(&mut common, "NVIDIA_VISIBLE_DEVICES", "void");
    put_hooks(&mut common, gpus, files, default);
    let mut devices = Vec::new();
    let mut all = Map::new();
    for (gpu, mut edits) in gpus.iter().zip(each) {
        // A device's own edits are added last, and would win.
        without_ours(&mut edits);
        put_env(&mut edits, &format!("{GIVEN}{}", gpu.index), &gpu.uuid);
        vendor::add(&mut all, &edits);
        for name in [gpu.index.to_string(), gpu.uuid.clone()] {
            devices.push(json!({"name": name, "containerEdits": edits}));
        }
    }
    devices.push(json!({"name": "all", "containerEdits": all}));
    json!({
        "cdiVersion": version.to_string(),
        "kind": KIND,
        "devices": devices,
        "containerEdits": common,
    })
}

/// A list of the edits, made if it is not there.
fn list<'a>(edits: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Vec<Value>> {
    let list = edits.entry(name).or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut()
}

/// The places that have our files in every container.
const PLACES: [&str; 4] = [INSIDE_LIBRARY, "/etc/ld.so.preload", INSIDE, INSIDE_REGION];

fn without_ours(edits: &mut Map<String, Value>) {
    let is_ours = |mount: &Value| {
        let place = mount.get("containerPath").and_then(Value::as_str);
        place.is_some_and(|place| PLACES.contains(&place))
    };
    if let Some(Value::Array(mounts)) = edits.get_mut("mounts") {
        mounts.retain(|mount| !is_ours(mount));
    }
}

fn put_mounts(edits: &mut Map<String, Value>, files: &HostFiles) {
    let mounts = [
        (files.library.clone(), INSIDE_LIBRARY, "ro", true),
        (files.dir.join(PRELOAD), "/etc/ld.so.preload", "ro", false),
        (files.dir.join(CLOSED), INSIDE, "ro", false),
        // Not writable by a container's programs: its mode is that of a file of root.
        (files.dir.join(REGION), INSIDE_REGION, "rw", false),
    ];
    for (host, inside, access, is_loaded) in mounts {
        let mut options = vec![access, "nosuid", "nodev"];
        if !is_loaded {
            options.push("noexec");
        }
        options.push("bind");
        if let Some(list) = list(edits, "mounts") {
            list.retain(|mount| mount.get("containerPath").and_then(Value::as_str) != Some(inside));
            list.push(json!({"hostPath": host, "containerPath": inside, "options": options}));
        }
    }
}

fn put_env(edits: &mut Map<String, Value>, name: &str, value: &str) {
    if let Some(list) = list(edits, "env") {
        list.retain(|entry| entry.as_str().and_then(|text| text.split('=').next()) != Some(name));
        list.push(Value::String(format!("{name}={value}")));
    }
}

/// Our hooks come after the vendor's, which may add the driver's libraries to the container.
fn put_hooks(
    edits: &mut Map<String, Value>,
    gpus: &[Gpu],
    files: &HostFiles,
    default: &DefaultShare,
) {
    let words = |moment: &str| -> Vec<String> {
        let mut words: Vec<String> = ["vgpu", "oci-hook", moment].map(String::from).to_vec();
        if let Some(board) = &files.board {
            words.push(String::from("--board"));
            words.push(board.display().to_string());
        }
        words
    };
    let mut create = words("create");
    for (flag, value) in [
        ("--gpumem", &default.gpumem),
        ("--gpucores", &default.gpucores),
    ] {
        if let Some(shown) = value {
            create.push(format!("{flag}={}", shown.text));
        }
    }
    for gpu in gpus {
        let gpu = EngineGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            memory_bytes: gpu.memory_bytes,
        };
        create.push(format!("--gpu={gpu}"));
    }
    for (moment, words) in [("createRuntime", create), ("poststop", words("remove"))] {
        let hook = json!({
            "hookName": moment,
            "path": files.program,
            "args": words,
            "timeout": TIMEOUT_S,
        });
        if let Some(list) = list(edits, "hooks") {
            list.push(hook);
        }
    }
}

/// Makes the files that every container gets. Running containers have them mounted, so what is there as it must be
/// stays.
fn make_files(dir: &Path) -> anyhow::Result<()> {
    let closed = dir.join(CLOSED);
    make_dir(dir)?;
    make_dir(&closed)?;
    let preload = format!("{INSIDE_LIBRARY}\n");
    for (path, bytes) in [
        (dir.join(PRELOAD), preload.as_bytes()),
        (closed.join(LIMITS), &b""[..]),
        (dir.join(REGION), &b""[..]),
    ] {
        if fs::read(&path).ok().as_deref() != Some(bytes) {
            replace(&path, bytes)?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder
        .create(path)
        .with_context(|| format!("cannot make {}", path.display()))
}

/// Writes a file by one rename, readable for all.
fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = path.with_file_name(name);
    fs::remove_file(&new).ok();
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    let written = options.open(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn gpu(index: u32, uuid: &str) -> Gpu {
        Gpu {
            index,
            uuid: uuid.to_owned(),
            name: String::from("H"),
            memory_bytes: 1 << 34,
            used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            instances: Vec::new(),
        }
    }

    #[test]
    fn devices_have_the_vendors_edits_and_ours() {
        let dir = tempfile::tempdir().unwrap();
        let node = |path: &str| json!({"deviceNodes": [{"path": path}]});
        let text = json!({
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=all"],
                "deviceNodes": [{"path": "/dev/nvidiactl"}],
                "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}],
            },
            "devices": [
                {"name": "0", "containerEdits": node("/dev/nvidia0")},
                {"name": "1", "containerEdits": node("/dev/nvidia1")},
            ],
        });
        fs::write(dir.path().join("nvidia.json"), text.to_string()).unwrap();
        // Our own file beside it is not the vendor's.
        fs::write(dir.path().join("vgpu.json"), "{").unwrap();
        let dirs = [dir.path().to_owned()];
        let vendor = Vendor {
            dirs: &dirs,
            kind: "nvidia.com/gpu",
            capabilities: &dir.path().join("none"),
            is_ours: |file| file == "vgpu.json",
        };
        let gpus = [gpu(0, "GPU-aa"), gpu(1, "GPU-bb")];
        let parts = vendor
            .parts(&gpus.iter().map(wanted).collect::<Vec<_>>())
            .unwrap();
        let files = HostFiles {
            program: PathBuf::from("/usr/bin/vgpu"),
            library: PathBuf::from("/usr/lib/vgpu/libvgpu.so"),
            dir: PathBuf::from("/var/lib/vgpu/containers"),
            board: None,
        };

        let spec = spec(&gpus, parts, &files, &DefaultShare::default());

        let lines = |value: &Value| serde_json::to_string(value).unwrap();
        let common = &spec["containerEdits"];
        let mut shown = format!("{} {}\n", spec["cdiVersion"], spec["kind"]);
        for list in ["env", "deviceNodes", "mounts", "hooks"] {
            for entry in common[list].as_array().unwrap() {
                shown.push_str(&format!("{list} {}\n", lines(entry)));
            }
        }
        for device in spec["devices"].as_array().unwrap() {
            shown.push_str(&format!("{}\n", lines(device)));
        }
        expect![[r#"
            "0.6.0" "vgpu.io/gpu"
            env "NVIDIA_VISIBLE_DEVICES=void"
            deviceNodes {"path":"/dev/nvidiactl"}
            mounts {"containerPath":"/usr/local/vgpu/libvgpu.so","hostPath":"/usr/lib/vgpu/libvgpu.so","options":["ro","nosuid","nodev","bind"]}
            mounts {"containerPath":"/etc/ld.so.preload","hostPath":"/var/lib/vgpu/containers/ld.so.preload","options":["ro","nosuid","nodev","noexec","bind"]}
            mounts {"containerPath":"/etc/vgpu","hostPath":"/var/lib/vgpu/containers/closed","options":["ro","nosuid","nodev","noexec","bind"]}
            mounts {"containerPath":"/run/vgpu/region","hostPath":"/var/lib/vgpu/containers/region","options":["rw","nosuid","nodev","noexec","bind"]}
            hooks {"hookName":"createContainer","path":"/usr/bin/nvidia-ctk"}
            hooks {"args":["vgpu","oci-hook","create","--gpu=0=GPU-aa=17179869184","--gpu=1=GPU-bb=17179869184"],"hookName":"createRuntime","path":"/usr/bin/vgpu","timeout":20}
            hooks {"args":["vgpu","oci-hook","remove"],"hookName":"poststop","path":"/usr/bin/vgpu","timeout":20}
            {"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}],"env":["VGPU_GPU_0=GPU-aa"]},"name":"0"}
            {"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}],"env":["VGPU_GPU_0=GPU-aa"]},"name":"GPU-aa"}
            {"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia1"}],"env":["VGPU_GPU_1=GPU-bb"]},"name":"1"}
            {"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia1"}],"env":["VGPU_GPU_1=GPU-bb"]},"name":"GPU-bb"}
            {"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"},{"path":"/dev/nvidia1"}],"env":["VGPU_GPU_0=GPU-aa","VGPU_GPU_1=GPU-bb"]},"name":"all"}
        "#]].assert_eq(&shown);
    }
}
