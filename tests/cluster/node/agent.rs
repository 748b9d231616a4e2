//! The node agent's and the container runtime's state on this node, as files and processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::world::{CONTAINERS, World, run, run_of};

/// The share of one container, as its directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) directory: PathBuf,
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) container: String,
}

/// All directories of containers that have been given something, sorted.
pub(crate) fn all_given() -> Vec<Given> {
    let mut all: Vec<Given> = fs::read_dir(CONTAINERS)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| read(&entry.path()))
        .collect();
    all.sort_by(|a, b| a.directory.cmp(&b.directory));
    all
}

/// The shares of one pod.
pub(crate) fn given(pod: &str) -> Vec<Given> {
    let mut all = all_given();
    all.retain(|given| given.pod == pod);
    all
}

fn read(directory: &Path) -> Option<Given> {
    let text = fs::read(directory.join("container.json")).ok()?;
    let json: Value = serde_json::from_slice(&text).ok()?;
    let labels = json.get("labels").unwrap_or(&json);
    let word = |name: &str| Some(labels.get(name)?.as_str()?.to_owned());
    Some(Given {
        directory: directory.to_owned(),
        pod: word("pod")?,
        pod_uid: word("pod_uid").or_else(|| word("uid"))?,
        container: word("container")?,
    })
}

/// Ends the first process of a container, as if its program had crashed.
pub(crate) fn kill_container(pod: &Pod, container: &str) {
    kill(process_of(pod, container), Signal::SIGKILL).unwrap();
}

/// The first process of a container, by the node's number.
pub(crate) fn process_of(pod: &Pod, container: &str) -> Pid {
    let id = run_of(pod, container).expect("the container runs");
    let id = id.trim_start_matches("containerd://");
    let tasks = run(Command::new("ctr").args(["--namespace", "k8s.io", "tasks", "list"])).unwrap();
    let line = tasks.lines().find(|line| line.starts_with(id));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Pid::from_raw(number.expect(&tasks).parse().unwrap())
}

/// Whether a process exists and may hold files and ports. A killed process is a zombie as soon as its first thread has ended;
/// the others end on their own, and only the last one closes what they hold.
pub(crate) fn lives(process: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else {
        return false;
    };
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, rest)) => rest.split_whitespace().collect(),
        None => return false,
    };
    // Fields 3 and 20 of proc_pid_stat(5): the state, and the number of threads.
    let threads: u32 = fields[17].parse().unwrap();
    fields[0] != "Z" || threads > 1
}

/// The processes whose program has that name.
pub(crate) fn processes(program: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(command) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = first
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        if name == program.as_bytes() {
            found.push(Pid::from_raw(pid));
        }
    }
    found
}

/// Waits until no process of the agent is left, after its pod has been deleted.
pub(crate) async fn is_gone(world: &World) {
    world
        .eventually("the agent is gone", async || {
            processes("vgpu-monitor").is_empty().then_some(())
        })
        .await;
}

/// A program of the node that was killed, and can be started as it was.
pub(crate) struct Stopped {
    command: Vec<String>,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    log: PathBuf,
}

impl Stopped {
    /// Kills the one program of that name.
    pub(crate) fn kill(program: &str, logs: &Path) -> Self {
        let own: Vec<Pid> = processes(program)
            .into_iter()
            .filter(|pid| !is_contained(*pid))
            .collect();
        let [pid] = own[..] else {
            panic!("{program} runs as {own:?}");
        };
        let words = |file: &str| -> Vec<String> {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let text = text.strip_suffix(b"\0").unwrap_or(&text);
            text.split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect()
        };
        let environment = words("environ")
            .iter()
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let stopped = Self {
            command: words("cmdline"),
            environment,
            folder: fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
            log: logs.join(format!("{program}.log")),
        };
        kill(pid, Signal::SIGKILL).unwrap();
        while lives(pid) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stopped
    }

    /// It will be started with another text in its arguments, which has to be in one of them.
    pub(crate) fn replace_in_arguments(&mut self, from: &str, to: &str) {
        let mut found = self.command.iter_mut().filter(|word| word.contains(from));
        let word = found.next().unwrap_or_else(|| panic!("no {from}"));
        *word = word.replace(from, to);
    }

    /// Starts it again; it outlives the test.
    pub(crate) fn start(self) {
        drop(self.spawn());
    }

    /// Starts it as systemd does: again when it exits, until it stays. A kubelet exits that finds a containerd which is not
    /// ready yet.
    pub(crate) fn start_until_it_stays(self) {
        for _start in 0..20 {
            let mut child = self.spawn();
            let exited = (0..30).find_map(|_look| {
                std::thread::sleep(Duration::from_millis(100));
                child.try_wait().unwrap()
            });
            if exited.is_none() {
                return;
            }
        }
        panic!(
            "{} exits whenever it is started: {}",
            self.command[0],
            self.log.display()
        );
    }

    fn spawn(&self) -> Child {
        let log = fs::File::options().append(true).open(&self.log).unwrap();
        Command::new(&self.command[0])
            .args(&self.command[1..])
            .env_clear()
            .envs(self.environment.clone())
            .current_dir(&self.folder)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// The one program of that name on the node, which stands still for as long as this value lives.
pub(crate) struct Paused(Pid);

impl Paused {
    pub(crate) fn new(program: &str) -> Self {
        let mut own = processes(program);
        own.retain(|pid| !is_contained(*pid));
        let [pid] = own[..] else {
            panic!("{program} runs as {own:?}");
        };
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

/// Whether a process is in a pod's container: kube-scheduler runs on the node and beside our scheduler.
fn is_contained(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains("kubepods"))
}

/// All processes of pods.
pub(crate) fn contained() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw)
        .filter(|pid| is_contained(*pid))
        .collect()
}

/// Kills a container's program in a pod of the product.
pub(crate) fn kill_contained(program: &str) {
    let all: Vec<Pid> = processes(program)
        .into_iter()
        .filter(|pid| is_contained(*pid))
        .collect();
    assert!(!all.is_empty(), "{program} runs nowhere");
    for pid in all {
        kill(pid, Signal::SIGKILL).unwrap();
    }
}

/// The plugins behind a front.
fn behind() -> Vec<Pid> {
    let is_behind = |pid: &Pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        lives(*pid) && words.any(|word| word.starts_with(b"--front="))
    };
    processes("vgpu-monitor")
        .into_iter()
        .filter(is_behind)
        .collect()
}

/// How many plugins run behind a front.
pub(crate) fn plugins() -> usize {
    behind().len()
}

/// Kills the plugin behind its front, in the agent's pod.
pub(crate) fn kill_plugin() {
    let all = behind();
    assert_eq!(all.len(), 1, "one plugin is behind its front");
    for pid in all {
        kill(pid, Signal::SIGKILL).unwrap();
    }
}
