//! `vgpu doctor node` beside a DRA driver and a real API server: what it reads of the node's ResourceSlices, and what it
//! says when they are not what the driver shows. The node's GPUs are simulated, and no kubelet is there.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::claims::slice_of;
use crate::objects::Gpus;
use crate::programs::Program;
use crate::world::{World, within};

const NODE: &str = "patient";

/// A node's programs, with two simulated GPUs.
struct Node<'w> {
    world: &'w World,
    home: &'w Path,
}

impl Node<'_> {
    /// The variables by which a program finds the simulated driver.
    fn driver(&self) -> [String; 2] {
        [
            format!("LD_LIBRARY_PATH={}", self.home.join("lib").display()),
            format!("VGPU_SIM_BOARD={}", self.home.join("board").display()),
        ]
    }

    fn start(&self, what: &str, words: &[String]) -> Program {
        let program = self.world.ours.join("vgpu-monitor");
        let mut all = self.driver().to_vec();
        all.push(program.to_str().unwrap().to_owned());
        all.extend_from_slice(words);
        Program::start(self.world, what, PathBuf::from("/usr/bin/env"), all)
    }

    fn flag(&self, name: &str, folder: &str) -> String {
        let path = self.home.join(folder);
        std::fs::create_dir_all(&path).unwrap();
        format!("--{name}={}", path.display())
    }

    /// Verdict and evidence of a check, as `vgpu doctor node` with the rights of this account says.
    fn judged(&self, id: &str, account: &str) -> (String, String) {
        let output = Command::new("/usr/bin/env")
            .args(self.driver())
            .arg(self.world.ours.join("vgpu"))
            .args(["doctor", "node", "--json", "--only", id, "--kubeconfig"])
            .arg(self.world.run.join(format!("{account}.kubeconfig")))
            .output()
            .unwrap();
        let said: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let rows = said["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("evidence"))
    }

    async fn until(&self, id: &str, verdict: &str, evidence: &str) {
        let what = format!("{id} is {verdict}: {evidence}");
        let mut last = None;
        self.world
            .eventually(&what, async || {
                let said = self.judged(id, "admin");
                let is_it = said.0 == verdict && said.1.contains(evidence);
                if last.as_ref() != Some(&said) {
                    println!("{id}: {said:?}");
                    last = Some(said);
                }
                is_it.then_some(())
            })
            .await;
    }
}

async fn remove_all(slices: &Api<ResourceSlice>) {
    let (now, all) = (DeleteParams::default(), ListParams::default());
    drop(slices.delete_collection(&now, &all).await.unwrap());
}

#[test]
fn doctor_compares_a_nodes_slices_with_its_driver() {
    within(async |world| {
        if !world.has(34, "claims that share a device") {
            return;
        }
        let built = ["vgpu", "vgpu-monitor", "libnvidia_ml.so"].map(|it| world.ours.join(it));
        if let Some(missing) = built.iter().find(|file| !file.exists()) {
            println!("left out: {} is not built", missing.display());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let node = Node {
            world,
            home: folder.path(),
        };
        let library = folder.path().join("lib");
        std::fs::create_dir(&library).unwrap();
        std::os::unix::fs::symlink(&built[2], library.join("libnvidia-ml.so.1")).unwrap();
        let board = folder.path().join("board");
        cuda_sim::Board::create(&board, &cuda_sim::Config::default()).unwrap();
        world.make_nodes([NODE], &Gpus::default()).await;
        let kubeconfig = world.run.join("admin.kubeconfig");
        let driver = node.start(
            "dra",
            &[
                "dra".to_owned(),
                format!("--node-name={NODE}"),
                node.flag("state-dir", "state"),
                node.flag("kubelet-dir", "kubelet"),
                node.flag("cdi-dir", "cdi"),
                format!("--library={}", built[2].display()),
                "--metrics-addr=127.0.0.1:0".to_owned(),
                format!("--kubeconfig={}", kubeconfig.display()),
            ],
        );

        node.until("VGPU-N29", "ok", "1 slices, 2 devices of 2 GPUs")
            .await;
        // Without the right to read slices it says so, and judges nothing.
        let (verdict, why) = node.judged("VGPU-N29", "tenant");
        assert_eq!(verdict, "skipped", "{why}");
        assert!(
            why.contains("cannot be read") && why.contains("forbidden"),
            "{why}"
        );

        // The driver stands still: another client's changes stay.
        driver.signal(Signal::SIGSTOP);
        let slices: Api<ResourceSlice> = Api::all(world.client.clone());
        remove_all(&slices).await;
        node.until("VGPU-N29", "fail", "the node has no ResourceSlice")
            .await;
        let wrong = slice_of(NODE, 1, "8Gi");
        slices.create(&PostParams::default(), &wrong).await.unwrap();
        let gone =
            format!("device gpu-0 is GPU \"GPU-{NODE}-claims-0\", which the driver does not");
        node.until("VGPU-N29", "fail", &gone).await;

        driver.signal(Signal::SIGCONT);
        node.until("VGPU-N29", "ok", "1 slices, 2 devices of 2 GPUs")
            .await;

        // The second fence: what one process leaves, another one has to do.
        node.until("VGPU-N30", "ok", "no process of its own").await;
        let containers = node.flag("root", "state/containers");
        let exporter = node.start(
            "exporter",
            &[
                containers.clone(),
                "--metrics-addr=127.0.0.1:0".to_owned(),
                "--attest=off".to_owned(),
                "--no-fence".to_owned(),
            ],
        );
        node.until("VGPU-N30", "fail", "no process vgpu-monitor fence")
            .await;
        let groups = node.flag("control-groups", "groups");
        let fence = node.start("fence", &["fence".to_owned(), containers, groups]);
        node.until("VGPU-N30", "ok", "vgpu-monitor fence").await;
        drop((fence, exporter, driver));
        remove_all(&slices).await;
    });
}
