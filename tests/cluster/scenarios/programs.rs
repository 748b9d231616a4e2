//! The programs that a test starts in addition to the cluster's own: vgpu-scheduler, vgpu-webhook, kube-scheduler.
//! Each ends when its value is dropped; when a test fails, the end of its log is shown.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use serde_json::json;

use crate::http;
use crate::objects::pod;
use crate::world::{SYSTEM, World};

/// One running program.
pub(crate) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `program` on a machine of the name `host`: the same network, another host name.
    pub(crate) fn start<A: AsRef<OsStr>>(
        world: &World,
        host: &str,
        program: PathBuf,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let name = program.file_name().unwrap().to_string_lossy().into_owned();
        assert!(program.exists(), "{} is not built", program.display());
        let log = world.log(&format!("{name}-{host}"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = Command::new("unshare")
            .args(["--uts", "sh", "-c", r#"hostname "$0" && exec "$@""#, host])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { name, child, log }
    }

    /// As the kernel ends a program: nothing of it runs any more.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As a kubelet ends one.
    pub(crate) fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap();
    }

    /// Sends a signal, such as one that stops or continues it.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// All that it has written.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The most memory that it has had, as the kernel writes it.
    pub(crate) fn peak_memory(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.unwrap_or_default().trim().to_owned()
    }

    fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn assert_runs(&mut self) {
        assert!(!self.ended(), "{} has ended:\n{}", self.name, self.log());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let ended = self.ended();
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!(
                "---- {} ({}), its last lines:",
                self.name,
                if ended { "had ended" } else { "ran" }
            );
            for line in &lines[lines.len().saturating_sub(25)..] {
                println!("{}", line.chars().take(400).collect::<String>());
            }
        }
    }
}

/// The addresses of one pair of schedulers. Each replica is such a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The host name of both, as if both were in one pod.
    pub(crate) host: &'static str,
    /// The address on which both listen and find the API server.
    pub(crate) ip: IpAddr,
    /// The extender's port.
    pub(crate) extender: u16,
    /// kube-scheduler's port.
    pub(crate) scheduler: u16,
}

/// The addresses of a test's only pair.
pub(crate) const ONE: Place = Place {
    host: "one",
    ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    extender: 8080,
    scheduler: 10259,
};

/// The addresses of the second replica.
pub(crate) const TWO: Place = Place {
    host: "two",
    ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    extender: 8081,
    scheduler: 10260,
};

/// The addresses of a test's only pair when another program uses port 8080.
pub(crate) const ASIDE: Place = Place {
    host: "one",
    ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    extender: 8090,
    scheduler: 10259,
};

/// The addresses of a test's only pair where there is no IPv4.
pub(crate) const ONE_BY_IPV6: Place = Place {
    ip: IpAddr::V6(Ipv6Addr::LOCALHOST),
    ..ONE
};

/// The kubeconfig of an account, which finds the API server at this loopback address.
pub(crate) fn kubeconfig(world: &World, account: &str, ip: IpAddr) -> PathBuf {
    let file = world.run.join(format!("{account}.kubeconfig"));
    if ip == Ipv4Addr::LOCALHOST {
        return file;
    }
    let other = world.log(account).with_extension("kubeconfig");
    let server = |ip: IpAddr| format!("https://{}", SocketAddr::new(ip, 6443));
    let text = std::fs::read_to_string(file).unwrap();
    let changed = text.replace(&server(Ipv4Addr::LOCALHOST.into()), &server(ip));
    assert_ne!(changed, text);
    std::fs::write(&other, changed).unwrap();
    other
}

/// A vgpu-scheduler, whether it answers yet or not.
pub(crate) fn start_extender(world: &World, place: Place, more: &[&str]) -> Program {
    let arguments = [
        "--kubeconfig".to_owned(),
        kubeconfig(world, "vgpu-scheduler", place.ip)
            .display()
            .to_string(),
        format!("--http_bind={}", place.extender_address()),
        format!("--leader-elect-resource-namespace={SYSTEM}"),
        "--leader-elect-resource-name=hami-scheduler".to_owned(),
    ];
    let all = arguments
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied());
    Program::start(world, place.host, world.ours.join("vgpu-scheduler"), all)
}

/// How soon kube-scheduler's Lease changes hands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Handover {
    /// After as long as Kubernetes has it by itself: an API server that a busy machine holds up for some seconds ends no
    /// kube-scheduler.
    #[default]
    Late,
    /// As the chart has it.
    AsInTheChart,
    /// In seconds.
    Quick,
    /// Not while a test runs: on a busy machine, an API server to which a test gives a thousand pods may refuse kube-scheduler's
    /// renewals for more than ten seconds.
    Never,
}

/// A test's changes of kube-scheduler's configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tuning {
    /// After how many seconds a volume that is not bound is given up.
    pub(crate) volume_seconds: Option<u32>,
    /// How soon the Lease changes hands.
    pub(crate) lease: Handover,
    /// Whether the extender is asked about requests of hcs.io, as the chart has it with `hcs.enabled`.
    pub(crate) hcs: bool,
    /// Whether the extender scores nodes for pods with ResourceClaims, as the chart has it with `dra.enabled`.
    pub(crate) claims: bool,
}

/// A kube-scheduler that asks the extender of its place.
pub(crate) fn start_kube_scheduler(world: &World, place: Place, tuning: Tuning) -> Program {
    let template = include_str!("../kube-scheduler.yaml");
    let kubeconfig = kubeconfig(world, "kube-scheduler", place.ip);
    let mut config = template
        .replace("@KUBECONFIG@", &kubeconfig.display().to_string())
        .replace(
            "@EXTENDER@",
            &format!("http://{}", place.extender_address()),
        );
    if let Some(seconds) = tuning.volume_seconds {
        config = config.replace(
            "- schedulerName: hami-scheduler\n",
            &format!(
                "- schedulerName: hami-scheduler\n  pluginConfig: [{{name: VolumeBinding, args: {{bindTimeoutSeconds: {seconds}}}}}]\n"
            ),
        );
    }
    let [lease, renew, retry] = match tuning.lease {
        Handover::Late => ["15s", "10s", "2s"],
        Handover::AsInTheChart => ["8s", "6s", "1s"],
        Handover::Quick => ["4s", "3s", "500ms"],
        Handover::Never => ["180s", "170s", "2s"],
    };
    config = config
        .replace("leaseDuration: 8s", &format!("leaseDuration: {lease}"))
        .replace("renewDeadline: 6s", &format!("renewDeadline: {renew}"))
        .replace("retryPeriod: 1s", &format!("retryPeriod: {retry}"));
    if tuning.hcs {
        // A separate profile for pods that accept devices of several vendors, as in the chart.
        config = config.replace(
            "extenders:\n",
            "- schedulerName: hami-scheduler-any-vendor\n  pluginConfig: [{name: NodeResourcesFit, args: {ignoredResourceGroups: [nvidia.com]}}]\nextenders:\n",
        );
        for resource in ["vram", "tflops-fp16", "tflops-fp32", "devices"] {
            config.push_str(&format!(
                "  - {{name: ai.compute/{resource}, ignoredByScheduler: true}}\n"
            ));
        }
    }
    if tuning.claims {
        config.push_str(&format!(
            "- urlPrefix: \"http://{}\"\n  prioritizeVerb: prioritize\n  nodeCacheCapable: true\n  weight: 1000\n  ignorable: true\n  httpTimeout: 30s\n",
            place.extender_address()
        ));
    }
    let file = world
        .log(&format!("kube-scheduler-{}", place.host))
        .with_extension("yaml");
    std::fs::write(&file, config).unwrap();
    let mut arguments = vec![
        format!("--config={}", file.display()),
        format!("--bind-address={}", place.ip),
        format!("--secure-port={}", place.scheduler),
        "--v=2".to_owned(),
    ];
    // As in cluster-init: on by default from 1.36 on.
    if matches!(world.minor(), 34 | 35) {
        arguments
            .push("--feature-gates=DRAConsumableCapacity=true,DRAPartitionableDevices=true,DRADeviceTaints=true".to_owned());
    }
    if world.minor() < 30 {
        // As in the chart: these versions try a pod again for fewer reasons.
        arguments.push("--pod-max-in-unschedulable-pods-duration=1m".to_owned());
    }
    Program::start(
        world,
        place.host,
        world.bin.join("kube-scheduler"),
        arguments,
    )
}

/// One replica: an extender and the kube-scheduler beside it.
pub(crate) struct Pair {
    pub(crate) kube_scheduler: Program,
    pub(crate) extender: Program,
    place: Place,
}

impl Pair {
    /// The only replica, which answers.
    pub(crate) async fn start(world: &World) -> Self {
        Self::start_with(world, &[], Tuning::default()).await
    }

    /// The same with more arguments for the extender.
    pub(crate) async fn start_with(world: &World, more: &[&str], tuning: Tuning) -> Self {
        let mut pair = Self::start_at(world, ONE, more, tuning);
        pair.answers(world).await;
        pair
    }

    /// A replica at its place, whether it answers yet or not.
    pub(crate) fn start_at(world: &World, place: Place, more: &[&str], tuning: Tuning) -> Self {
        Self {
            extender: start_extender(world, place, more),
            kube_scheduler: start_kube_scheduler(world, place, tuning),
            place,
        }
    }

    /// Its addresses.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Waits until it is the one that answers.
    pub(crate) async fn answers(&mut self, world: &World) {
        let place = self.place;
        world
            .eventually(
                &format!("the extender of {} answers", place.host),
                async || {
                    self.extender.assert_runs();
                    self.kube_scheduler.assert_runs();
                    place.is_asked().await.then_some(())
                },
            )
            .await;
    }
}

impl Place {
    /// Where the extender listens.
    fn extender_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.extender)
    }

    /// Whether this extender is the one that answers. A follower is also ready, and answers 503 to this.
    pub(crate) async fn is_asked(&self) -> bool {
        let plain = json!({"Pod": pod("plain", json!({})), "NodeNames": []});
        let answer = http::ask_at(self.extender_address(), "POST", "/filter", Some(&plain)).await;
        matches!(answer, Some((200, _)))
    }
}

/// A vgpu-webhook as one of two replicas behind the Service `vgpu-webhook`: number 1 or 2.
pub(crate) fn start_webhook(world: &World, replica: u16, more: &[&str]) -> Program {
    let kubeconfig = world.run.join("vgpu-webhook.kubeconfig");
    let arguments = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={SYSTEM}"),
        format!("--http_bind=10.99.0.{replica}:9443"),
        format!("--metrics-bind-address=127.0.0.1:{}", metrics_of(replica)),
        "--shutdown-delay=1".to_owned(),
    ];
    let all = arguments
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied());
    let host = if replica == 1 { "one" } else { "two" };
    Program::start(world, host, world.ours.join("vgpu-webhook"), all)
}

/// The port of a webhook's `/readyz` and `/metrics`.
pub(crate) fn metrics_of(replica: u16) -> u16 {
    9100 + replica
}
