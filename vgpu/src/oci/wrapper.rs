//! An OCI runtime for container engines without CDI: applies the file of `vgpu cdi` to the bundle of a container whose
//! environment has `VGPU_GPU`, then becomes runc.
//!
//! Never runs anything of the container, and changes only its `config.json`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::asked::choice;
use super::{GIVEN, bundle, inject};
use crate::args::containers::OciRuntimeArgs;
use crate::failure::{Failure, Misuse};
use crate::values::GpuRef;

/// The name of a link to this program under which it is an OCI runtime without flags of its own.
const AS_RUNTIME: &str = "vgpu-runtime";
/// The OCI runtimes that are looked for.
const RUNTIMES: [&str; 2] = ["runc", "crun"];
/// Flags of theirs before the command whose value is the next word.
const WITH_VALUE: [&str; 7] = [
    "--log",
    "--log-format",
    "--log-level",
    "--root",
    "--criu",
    "--rootless",
    "--cgroup-manager",
];

/// This program's arguments; under the name of an OCI runtime, those of `vgpu oci-runtime`.
pub(crate) fn as_runtime(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let name = words.first().and_then(|word| Path::new(word).file_name());
    if name == Some(OsStr::new(AS_RUNTIME)) {
        let ours = ["oci-runtime", "--"].map(OsString::from);
        words.splice(1..1, ours);
    }
    words
}

pub(crate) fn run(args: &OciRuntimeArgs) -> Result<ExitCode, Failure> {
    let asked = EngineWords::of(&args.words);
    if asked.creates
        && let Err(failure) = show_gpus(&asked.bundle, &args.spec)
    {
        if let Some(log) = &asked.log {
            tell(log, &failure.to_string());
        }
        return Err(failure);
    }
    let runtime = match &args.runtime {
        Some(runtime) => runtime.clone(),
        None => find_runtime()?,
    };
    let error = Command::new(&runtime).args(&args.words).exec();
    Err(Failure::Failed(
        anyhow!(error).context(format!("cannot run {}", runtime.display())),
    ))
}

/// The words of the engine that matter here.
#[derive(Debug, PartialEq, Eq)]
struct EngineWords {
    creates: bool,
    bundle: PathBuf,
    log: Option<PathBuf>,
}

impl EngineWords {
    fn of(words: &[OsString]) -> Self {
        let value = |names: &[&str]| {
            words.iter().enumerate().find_map(|(place, word)| {
                let word = word.to_str()?;
                if names.contains(&word) {
                    return words.get(place + 1).map(PathBuf::from);
                }
                let (name, value) = word.split_once('=')?;
                names.contains(&name).then(|| PathBuf::from(value))
            })
        };
        // Later words may be a container's name, or a command for it.
        let mut before = words.iter();
        let command = loop {
            match before.next() {
                Some(word) if WITH_VALUE.iter().any(|flag| word == *flag) => {
                    before.next();
                }
                Some(word) if word.as_encoded_bytes().starts_with(b"-") => {}
                command => break command,
            }
        };
        Self {
            creates: command.is_some_and(|word| word == "create" || word == "run"),
            bundle: value(&["--bundle", "-b"]).unwrap_or_else(|| PathBuf::from(".")),
            log: value(&["--log"]),
        }
    }
}

/// The error where containerd and Docker look for it: a line in the runtime's log.
fn tell(log: &Path, text: &str) {
    let line = serde_json::json!({"level": "error", "msg": text, "time": "1970-01-01T00:00:00Z"});
    let opened = fs::OpenOptions::new().append(true).create(true).open(log);
    if let Ok(mut file) = opened {
        writeln!(file, "{line}").ok();
    }
}

fn find_runtime() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok();
    for name in RUNTIMES {
        for dir in std::env::split_paths(&path) {
            let file = dir.join(name);
            // A link of that name to this program would run itself for ever.
            let is_own = file.canonicalize().ok() == own;
            let is_program = fs::metadata(&file)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
            if is_program && !is_own {
                return Ok(file);
            }
        }
    }
    Err(anyhow!(
        "cannot find {} in PATH; name one with --runtime",
        RUNTIMES.join(" or ")
    ))
}

/// Applies the edits of the GPUs that the container's environment names, if it names any.
fn show_gpus(bundle: &Path, spec: &Path) -> Result<(), Failure> {
    let path = bundle.join("config.json");
    let mut config = bundle::read(&path)?;
    let env = bundle::config_of(&config, bundle)?.env;
    let Some(wanted) = wanted(&env)? else {
        return Ok(());
    };
    let text = fs::read(spec).with_context(|| {
        format!(
            "cannot read {}, the CDI file of this machine's GPUs; make it with vgpu cdi, or name it with \
             vgpu oci-runtime --spec",
            spec.display()
        )
    })?;
    let shown = spec.display().to_string();
    let spec: Value = serde_json::from_slice(&text).with_context(|| shown.clone())?;
    for edits in inject::edits_of(&spec, &wanted).context(shown.clone())? {
        inject::apply(&mut config, edits).with_context(|| shown.clone())?;
    }
    write(&path, &config)?;
    Ok(())
}

/// Names of the CDI devices that the container asks for; `None` if it asks for none, or already has them.
fn wanted(env: &[String]) -> Result<Option<Vec<String>>, Misuse> {
    let pairs = || env.iter().rev().filter_map(|entry| entry.split_once('='));
    let value = |wanted: &str| {
        pairs()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    if pairs().any(|(name, _)| name.starts_with(GIVEN)) {
        return Ok(None);
    }
    let Some(text) = value("VGPU_GPU").filter(|text| !text.trim().is_empty()) else {
        let limits = [
            "VGPU_MEMORY",
            "VGPU_CORES",
            "VGPU_FLOOR",
            "VGPU_OVERSUBSCRIBE",
        ];
        return match limits.iter().find(|name| value(name).is_some()) {
            Some(name) => Err(Misuse::new(format!(
                "the container's environment has {name}, but no VGPU_GPU that says of which GPU; add VGPU_GPU, such \
                 as VGPU_GPU=0 or VGPU_GPU=all"
            ))),
            None => Ok(None),
        };
    };
    let names = match choice(text)? {
        None => vec![String::from("all")],
        Some(list) => list
            .into_iter()
            .map(|gpu| match gpu {
                GpuRef::Index(index) => index.to_string(),
                GpuRef::Uuid(uuid) => uuid,
            })
            .collect(),
    };
    Ok(Some(names))
}

/// Replaces the configuration as a whole.
fn write(path: &Path, config: &Value) -> anyhow::Result<()> {
    let new = path.with_file_name(".config.json.vgpu");
    let text = serde_json::to_vec(config).context("cannot write config.json as JSON")?;
    fs::remove_file(&new).ok();
    let mode = fs::metadata(path).map_or(0o600, |found| found.permissions().mode() & 0o755);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let written = options
        .open(&new)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn link_of_the_runtimes_name_needs_no_flags() {
        assert_eq!(
            as_runtime(words("/usr/bin/vgpu-runtime --root /r create c")),
            words("/usr/bin/vgpu-runtime oci-runtime -- --root /r create c")
        );
        assert_eq!(as_runtime(words("vgpu top")), words("vgpu top"));
    }

    #[test]
    fn engines_words_are_read_in_both_forms() {
        let asked = EngineWords::of(&words("--root /r --log=/l create --bundle /b id"));
        assert_eq!(
            asked,
            EngineWords {
                creates: true,
                bundle: PathBuf::from("/b"),
                log: Some(PathBuf::from("/l")),
            }
        );
        let asked = EngineWords::of(&words("--log /l delete id"));
        assert_eq!((asked.creates, asked.bundle), (false, PathBuf::from(".")));
        for (text, creates) in [
            ("--systemd-cgroup --log-format json run -b /b id", true),
            ("--root create state id", false),
            ("--log=/l delete --force run", false),
            ("exec web create", false),
            ("", false),
        ] {
            assert_eq!(EngineWords::of(&words(text)).creates, creates, "{text}");
        }
    }

    #[test]
    fn a_container_gets_gpus_only_if_it_asks_for_them() {
        let wanted_of = wanted;
        let wanted = |env: &[&str]| {
            let env: Vec<_> = env.iter().map(|entry| (*entry).to_owned()).collect();
            wanted_of(&env).map_err(|error| error.to_string())
        };
        let names = |names: &[&str]| Ok(Some(names.iter().map(|n| (*n).to_owned()).collect()));
        assert_eq!(wanted(&["PATH=/bin", "VGPU_GPU="]), Ok(None));
        assert_eq!(wanted(&["VGPU_GPU=0"]), names(&["0"]));
        assert_eq!(wanted(&["VGPU_GPU=0", "VGPU_GPU=all"]), names(&["all"]));
        assert_eq!(wanted(&["VGPU_GPU=1,GPU-aa"]), names(&["1", "GPU-aa"]));
        // An engine with CDI was here before.
        assert_eq!(wanted(&["VGPU_GPU=0", "VGPU_GPU_0=GPU-aa"]), Ok(None));
        let error = wanted(&["VGPU_MEMORY=4Gi"]).unwrap_err();
        assert!(
            error.contains("no VGPU_GPU that says of which GPU"),
            "{error}"
        );
        let error = wanted(&["VGPU_GPU=first"]).unwrap_err();
        assert!(
            error.contains(r#"GPU "first" is not known; accepted: "#),
            "{error}"
        );
    }
}
