//! A real `kubectl` against the embedded cluster, if there is one (`KUBECTL`, else on the path).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::process::Stdio;

use support::Served;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

const OBJECTS: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: a}}
spec: {containers: [{name: c, image: busybox, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 2
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: busybox}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
";

struct Kubectl {
    program: String,
    served: Served,
    home: tempfile::TempDir,
}

impl Kubectl {
    /// None if no kubectl is found.
    async fn start() -> Option<Self> {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
        let home = tempfile::tempdir().unwrap();
        let found = Command::new(&program)
            .args(["version", "--client"])
            .env("HOME", home.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await
            .is_ok_and(|status| status.success());
        if !found {
            println!("skipped: no kubectl");
            return None;
        }
        Some(Self {
            program,
            served: Served::start().await,
            home,
        })
    }

    async fn run(&self, arguments: &str) -> Result<String, String> {
        let mut child = Command::new(&self.program)
            .args(["--server", &self.served.url])
            .args(arguments.split_whitespace())
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        if arguments.contains("-f -") {
            stdin.write_all(OBJECTS.as_bytes()).await.unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    async fn says(&self, arguments: &str, wanted: &str) {
        let said = self
            .run(arguments)
            .await
            .unwrap_or_else(|error| panic!("kubectl {arguments}: {error}"));
        assert!(said.contains(wanted), "kubectl {arguments}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_reads_changes_and_deletes() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };

    kubectl.says("version", "v1.35.0+embedded").await;
    kubectl.says("apply -f -", "pod/p created").await;
    kubectl
        .says("apply -f -", "deployment.apps/d unchanged")
        .await;
    kubectl
        .says("apply --server-side -f -", "pod/p serverside-applied")
        .await;
    kubectl
        .says(
            "apply --server-side -f -",
            "deployment.apps/d serverside-applied",
        )
        .await;
    kubectl
        .says("get pods -l app=a -o wide", "0/1     Pending")
        .await;
    kubectl
        .says("get pod p -o jsonpath={.status.phase}", "Pending")
        .await;
    kubectl.says("label pod p x=y", "labeled").await;
    kubectl.says("annotate pod p x=y", "annotated").await;
    kubectl
        .says("scale deployment d --replicas=3", "scaled")
        .await;
    kubectl.says("get deployments", "0/3").await;
    kubectl
        .says("taint node n1 k=v:NoSchedule", "tainted")
        .await;
    kubectl.says("cordon n1", "cordoned").await;
    kubectl.says("get nodes", "SchedulingDisabled").await;
    kubectl.says("describe pod p", "nvidia.com/gpu:  1").await;
    kubectl.says("get all", "deployment.apps/d").await;
    kubectl.says("delete pod p", "deleted").await;
    kubectl.says("delete namespace team", "deleted").await;

    let gone = kubectl.run("get pod p").await.unwrap_err();
    assert!(
        gone.contains("Error from server (NotFound): pods \"p\" not found"),
        "{gone}"
    );
}
