//! A new version of the library comes while containers run: they keep theirs, and new ones get the new one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Pid;

use crate::agent;
use crate::world::{SYSTEM, gpu_pod, run, run_of, share, status, within};

/// The library files of the node, by their versioned names.
fn installed() -> BTreeSet<PathBuf> {
    let found = std::fs::read_dir("/var/lib/vgpu/lib").unwrap().flatten();
    found.map(|entry| entry.path().join("libvgpu.so")).collect()
}

/// The file that a process has mapped as the library: device and inode.
fn mapped(process: Pid) -> Option<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let line = maps.lines().find(|line| line.ends_with("/libvgpu.so"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(words[4].to_owned())
}

fn inode(file: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(file).unwrap().ino().to_string()
}

#[test]
fn library_upgrade_under_load_affects_no_running_container() {
    within(async |world| {
        let words = ["take=1000", "busy=600", "hold"];
        world.make_pod(gpu_pod("busy", &share(2000), &words)).await;
        let pod = world.until_ready("busy").await;
        world.lines("busy", "work", 1).await;
        let (process, before) = (agent::process_of(&pod, "work"), installed());
        let own = mapped(process).unwrap();
        assert!(before.iter().any(|file| inode(file) == own));

        // The same library with a word more in it is another version.
        let images = PathBuf::from(std::env::var_os("VGPU_IMAGES").unwrap());
        run(Command::new("ctr")
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(images.join("next.tar")))
        .unwrap();
        let set = ["set", "image", "-n", SYSTEM, "daemonset/vgpu-monitor"];
        let image = "localhost/vgpu-monitor:next";
        let parts = [format!("plugin={image}"), format!("exporter={image}")];
        let mut all = set.to_vec();
        all.extend(parts.iter().map(String::as_str));
        world.kubectl(&all).unwrap();
        world
            .kubectl(&[
                "rollout",
                "status",
                "-n",
                SYSTEM,
                "daemonset/vgpu-monitor",
                "--timeout=90s",
            ])
            .unwrap();

        world
            .make_pod(gpu_pod("newer", &share(2000), &["total", "hold"]))
            .await;
        let newer = world.until_ready("newer").await;
        world.lines("newer", "work", 2).await;
        // Another test may have installed that version before.
        let new = mapped(agent::process_of(&newer, "work")).unwrap();
        assert_ne!(new, own);
        assert!(installed().iter().any(|file| inode(file) == new));
        // The old one: same process, same file, same limit.
        assert!(agent::lives(process));
        assert_eq!(mapped(process).unwrap(), own);
        let later = world.until_ready("busy").await;
        assert_eq!(run_of(&later, "work"), run_of(&pod, "work"));
        assert_eq!(
            world.ask("busy", "work", &["take=900"]),
            ["refused CUDA_ERROR_OUT_OF_MEMORY"]
        );
        // Started again, it keeps the version that its pod began with.
        agent::kill_container(&later, "work");
        let again = world
            .until("busy", "is started again", |pod| {
                status(pod, "work").is_some_and(|state| state.restart_count > 0 && state.ready)
            })
            .await;
        world.lines("busy", "work", 1).await;
        assert_eq!(mapped(agent::process_of(&again, "work")).unwrap(), own);
    });
}
