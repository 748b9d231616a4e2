//! The second fence: NVIDIA's driver 615 keeps a container's control group to a limit of its own, which holds for
//! programs that the library does not reach.

use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_sim::groups::Groups;
use nix::unistd::Pid;
use serde_json::Value;

use crate::agent;
use crate::release::{helm, helm_upgrade};
use crate::world::{World, gpu_pod, run, share, within};

const MIB: u64 = 1 << 20;
/// The driver of CUDA 13.4, which is 615, and the one that the node has in all other cases.
const NEW: u32 = 13_040;
const USUAL: u32 = 12_040;
/// The memory of a context of the simulated driver.
const CONTEXT: u64 = 300 * MIB;

/// Where the node's control groups of version 2 are: below their own folder where the node has version 1 as well.
fn control_groups() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let place = places
        .iter()
        .find(|it| it.join("cgroup.controllers").exists());
    place.map(|it| it.to_path_buf())
}

/// The driver 615 and the container that sets its limits, for as long as this value lives.
struct Fenced<'w>(&'w World);

impl<'w> Fenced<'w> {
    fn on(world: &'w World, groups: &Path) -> Self {
        world.board.install_driver(NEW);
        let fenced = Self(world);
        let args = format!(
            "devicePlugin.secondFence.extraArgs=[\"--control-groups={}\"]",
            groups.display()
        );
        helm_upgrade(&[
            "--set",
            "devicePlugin.secondFence.enabled=true,metricsDetail=full",
            "--set-json",
            &args,
            "--wait",
        ]);
        fenced
    }
}

impl Drop for Fenced<'_> {
    fn drop(&mut self) {
        self.0.board.install_driver(USUAL);
        if !std::thread::panicking() {
            helm(&["rollback", "vgpu", "--wait"]);
        }
    }
}

/// The directory of a process's control group of version 2.
fn group_of(process: Pid, groups: &Path) -> PathBuf {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    groups.join(path.expect(&text))
}

#[test]
fn driver_limits_the_control_group_of_a_pod() {
    within(async |world| {
        let Some(groups) = control_groups() else {
            println!("left out: this node has no control groups of version 2");
            return;
        };
        if !world.by_cdi {
            println!("left out: the node is shown its control groups by CDI");
            return;
        }
        let fenced = Fenced::on(world, &groups);
        world.is_whole().await;
        let words = ["total", "take=1000", "hold"];
        world
            .make_pod(gpu_pod("fenced", &share(2000), &words))
            .await;
        let said = world.said("fenced", words.len()).await;
        assert_eq!(said["total"], (2000 * MIB).to_string());
        let pod = world.until_ready("fenced").await;
        let uuid = crate::world::devices(&pod)[0].0.clone();
        let gpu = (0..world.board.gpus()).find(|&gpu| world.board.uuid(gpu) == uuid);
        let gpu = gpu.unwrap();

        // The container's own group has its limit and a context more, and the pod's group has none.
        let process = agent::process_of(&pod, "work");
        let group = group_of(process, &groups);
        let known = Groups::of(&group).unwrap_or_else(|| panic!("{}", group.display()));
        let limit = 2000 * MIB + CONTEXT;
        world
            .eventually("the driver limits the container's group", async || {
                let (hard, used) = world.board.seen_from(gpu, &known)?;
                (hard == limit && used == 1000 * MIB + CONTEXT).then_some(())
            })
            .await;
        let above = Groups::of(group.parent().unwrap()).unwrap();
        assert_eq!(world.board.seen_from(gpu, &above), None);

        // The agent's own record of it, and its metrics.
        let file = agent::given("fenced")[0].directory.join("fence.json");
        let fence: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(fence["devices"][0]["limit_bytes"], limit, "{fence}");
        let is_both = |line: &str| {
            line.starts_with("vgpu_container_memory_fences_info{")
                && line.contains("pod=\"fenced\"")
                && line.contains("fences=\"both\"")
        };
        world
            .eventually("the metrics name both fences", async || {
                let text = world.metrics(31993).await?;
                text.lines().any(is_both).then_some(())
            })
            .await;

        // A program that the library does not reach, in the same group, holds a context and what is left of the limit.
        let python = world.run.join("../../venv/bin/python");
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu.py");
        let past = |word: &str| {
            let script = format!(
                "echo $$ > {}/cgroup.procs && exec {} {} {word}",
                group.display(),
                python.display(),
                program.display()
            );
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", &script]);
            run(shell.env("CUDA_VISIBLE_DEVICES", gpu.to_string())).unwrap()
        };
        let left = (limit - 1000 * MIB - 2 * CONTEXT) / MIB;
        let refused = past(&format!("take={}", left + 2));
        assert!(
            refused.contains("refused CUDA_ERROR_OUT_OF_MEMORY"),
            "{refused}"
        );
        let took = past(&format!("take={left}"));
        assert!(took.contains("took"), "{took}");

        world.remove("fenced").await;

        // The agent forgets it, and a new pod has a limit of its own.
        world
            .eventually(
                "the group has gone, and the record of its limit",
                async || (!group.exists() && !file.exists()).then_some(()),
            )
            .await;
        world
            .make_pod(gpu_pod("next", &share(1000), &["hold"]))
            .await;
        let pod = world.until_ready("next").await;
        let group = group_of(agent::process_of(&pod, "work"), &groups);
        world
            .eventually("the next pod's group has its own limit", async || {
                let known = Groups::of(&group)?;
                let gpus = 0..world.board.gpus();
                let limits: Vec<u64> = gpus
                    .filter_map(|gpu| Some(world.board.seen_from(gpu, &known)?.0))
                    .collect();
                let most = 1000 * MIB + 640 * MIB;
                (limits.len() == 1 && (1000 * MIB..=most).contains(&limits[0])).then_some(())
            })
            .await;
        world.remove("next").await;
        drop(fenced);
    });
}
