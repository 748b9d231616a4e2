//! A driver that is killed at every step of a claim's life: before and after each file of its directories, of its
//! descriptions and of its record. The driver that follows it takes up from there.

use std::path::Path;

use super::*;
use crate::delivery::tests::{gpus, settings};
use crate::dra::claim::Asked;

/// One process of the driver on the node in this folder, without its sockets.
struct Driver {
    preparer: Preparer,
    delivery: Arc<Delivery>,
    checkpoint: Arc<Checkpoint>,
}

impl Driver {
    fn on(root: &Path) -> Self {
        let objects = Objects::default();
        objects.claim("share", &[("a", 0, 4096, 0), ("b", 0, 2048, 10)]);
        objects.pod(&[
            ("x", &[("share", Some("a"))]),
            ("y", &[("share", Some("b"))]),
        ]);
        let inventories = gpus().subscribe();
        let settings = settings(root, Manner::Claim, inventories.clone());
        let delivery = Arc::new(Delivery::new(settings).unwrap());
        let checkpoint = Arc::new(Checkpoint::open(&root.join("var/lib/vgpu")).unwrap());
        let preparer = Preparer::new(Parts {
            node: String::from("n1"),
            client: kube::Client::new(objects.router(), "default"),
            delivery: Arc::clone(&delivery),
            checkpoint: Arc::clone(&checkpoint),
            inventories,
            healths: watch::Sender::default().subscribe(),
            team_label: String::from("team"),
            mig: Mig::start(&root.join("var/lib/vgpu"), None).unwrap(),
        });
        Self {
            preparer,
            delivery,
            checkpoint,
        }
    }

    async fn prepare(&self) -> Vec<prepare::ReadyDevice> {
        self.preparer.prepare(&share(), &[share()]).await.unwrap()
    }
}

fn share() -> Asked {
    Asked {
        namespace: String::from("default"),
        name: String::from("share"),
        uid: String::from("u-share"),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What a container runtime may find, which starts containers while no driver answers.
fn is_consistent(root: &Path, what: &str) {
    for at in 0..2 {
        let name = part_name("u-share", at);
        let spec = root.join(format!("var/run/cdi/vgpu-{name}.json"));
        if let Ok(text) = std::fs::read(&spec) {
            let spec: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(spec["kind"], "vgpu.io/container", "{what}");
            let limits = root.join(format!("var/lib/vgpu/containers/{name}/limits"));
            let limits = LimitsMap::open(&limits).unwrap_or_else(|error| panic!("{what}: {error}"));
            let limits = vgpu_abi::limits::Limits::from(&limits.load().unwrap());
            assert_eq!(limits.devices.len(), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn next_driver_goes_on_after_a_kill_at_any_step() {
    let mut steps = 0;
    loop {
        let node = NodeDir::new();
        let root = node.path("");
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([
            "dra::tests::killed::child_that_is_killed",
            "--exact",
            "--ignored",
        ]);
        command
            .env("VGPU_TEST_NODE", &root)
            .env("VGPU_TEST_STEP", steps.to_string());
        let ended = command.output().unwrap();
        let what = format!("killed at step {steps}");

        is_consistent(&root, &what);
        let driver = Driver::on(&root);
        // The kubelet had an answer, or asks again: in both cases all is there.
        let given = driver.prepare().await;
        let given: Vec<&str> = given.iter().map(|it| it.cdi_device.as_str()).collect();
        let expected = [
            "vgpu.io/container=claim-u-share-0",
            "vgpu.io/container=claim-u-share-1-0",
        ];
        assert_eq!(given, expected, "{what}");
        is_consistent(&root, &what);
        let cdi = root.join("var/run/cdi");
        let specs = ["vgpu-claim-u-share-1.json", "vgpu-claim-u-share.json"];
        let found: Vec<String> = names(&cdi)
            .into_iter()
            .filter(|name| !name.starts_with('.'))
            .collect();
        assert_eq!(found, specs, "{what}");
        assert_eq!(driver.checkpoint.count(), 1, "{what}");
        // And all of it can be taken away.
        driver.preparer.unprepare(&share()).await.unwrap();
        driver.delivery.tidy().unwrap();
        let state = root.join("var/lib/vgpu");
        for folder in [state.join("containers"), state.join("claims"), cdi] {
            assert_eq!(names(&folder), [""; 0], "{what}: {}", folder.display());
        }

        if ended.status.success() {
            break;
        }
        steps += 1;
        assert!(steps < 300, "{}", String::from_utf8_lossy(&ended.stderr));
    }
    assert!(steps > 40, "only {steps} steps were tried");
}

#[tokio::test]
#[ignore = "next_driver_goes_on_after_a_kill_at_any_step starts it as a process of its own, and it is killed"]
async fn child_that_is_killed() {
    let root = PathBuf::from(std::env::var_os("VGPU_TEST_NODE").unwrap());
    let driver = Driver::on(&root);
    crate::steps::arm(std::env::var("VGPU_TEST_STEP").unwrap().parse().unwrap());
    driver.prepare().await;
    // As after a restart of the kubelet, on a node whose /var/run is empty.
    std::fs::remove_dir_all(root.join("var/run/cdi")).unwrap();
    driver.prepare().await;
    driver.preparer.unprepare(&share()).await.unwrap();
    driver.prepare().await;
}
