//! hcs.io on a real API server: its definitions are taken, and the documented examples apply as they are.

use kube::api::PostParams;
use serde_json::{Value, json};

use crate::objects::{Gpus, from, pod};
use crate::programs::{Pair, Tuning};
use crate::webhook::one_with;
use crate::world::{World, within};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn apply(world: &World, file: &str) -> (bool, String) {
    let path = format!("{ROOT}/{file}");
    world.kubectl(
        "admin",
        &[
            "apply",
            "--validate=strict",
            "--server-side",
            "--filename",
            &path,
        ],
    )
}

/// The four kinds, served.
pub(crate) fn define(world: &World) {
    let (well, text) = apply(world, "charts/vgpu/files/hcs-crds.yaml");
    assert!(well, "{text}");
    for kind in [
        "computenodes",
        "computequotas",
        "computetasks",
        "computetopologies",
    ] {
        let definition = format!("crd/{kind}.hcs.io");
        let (well, text) = world.kubectl(
            "admin",
            &[
                "wait",
                "--for=condition=Established",
                "--timeout=60s",
                &definition,
            ],
        );
        assert!(well, "{text}");
    }
}

/// The argument that names a device configuration with hcs.io in it.
pub(crate) fn device_config(world: &World) -> String {
    let file = world.log("device-config").with_extension("yaml");
    let standard = format!("{ROOT}/charts/vgpu/files/device-config.yaml");
    let standard = std::fs::read_to_string(standard).unwrap();
    std::fs::write(
        &file,
        format!("{standard}\nhcs: {{anyVendorScheduler: hami-scheduler-any-vendor}}\n"),
    )
    .unwrap();
    format!("--device-config-file={}", file.display())
}

/// A pod that asks for 16 GiB of device memory of this vendor, as a user writes it.
pub(crate) fn sixteen_gib(name: &str, vendor: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"].as_object_mut().unwrap().remove("schedulerName");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"ai.compute/vram": "16Gi"}});
    pod["metadata"]["annotations"] = json!({"hcs.io/vendor-preference": vendor});
    pod
}

#[test]
fn the_documented_examples_apply_unchanged() {
    within(async |world| {
        define(world);
        world.kubectl("admin", &["create", "namespace", "team-a"]);

        for example in ["compute-node", "compute-quota", "compute-task"] {
            let applied = world
                .eventually("the kind is served", async || {
                    let (well, text) = apply(world, &format!("examples/hcs/{example}.yaml"));
                    (well || !text.contains("no matches for kind")).then_some((well, text))
                })
                .await;
            assert!(applied.0, "{}", applied.1);
        }
        let (_, shown) = world.kubectl("admin", &["get", "cn,cq,ct", "--all-namespaces"]);
        for name in ["gpu-node-1", "team-a-quota", "train-once"] {
            assert!(shown.contains(name), "{shown}");
        }

        // The API server itself refuses meaningless values.
        for (field, value) in [
            ("/spec/scopes", r#"["Nonsense"]"#),
            ("/spec/scopes", r#"[{"x": "y"}]"#),
            ("/spec/hard/vram", r#""-1Gi""#),
            ("/spec/hard/vram", r#""lots""#),
        ] {
            let patch = format!(r#"[{{"op": "replace", "path": "{field}", "value": {value}}}]"#);
            let (well, text) = world.kubectl(
                "admin",
                &[
                    "patch",
                    "cq",
                    "team-a-quota",
                    "-n",
                    "team-a",
                    "--type=json",
                    "-p",
                    &patch,
                ],
            );
            assert!(!well && text.contains("is invalid"), "{value}: {text}");
        }
        let all = ["cn/gpu-node-1", "cq/team-a-quota", "ct/train-once"];
        for (object, namespace) in all.into_iter().zip(["default", "team-a", "default"]) {
            world.kubectl("admin", &["delete", object, "-n", namespace]);
        }
        world.kubectl("admin", &["delete", "namespace", "team-a", "--wait=false"]);
    });
}

#[test]
fn a_pod_past_its_quota_is_refused_when_it_is_made() {
    within(async |world| {
        define(world);
        world.make_nodes(["a"], &Gpus::default()).await;
        let config = device_config(world);
        let _webhook = one_with(world, &[&config]).await;
        let tuning = Tuning {
            hcs: true,
            ..Tuning::default()
        };
        let _pair = Pair::start_with(world, &[&config], tuning).await;
        let quota = json!({"apiVersion": "hcs.io/v1alpha1", "kind": "ComputeQuota",
            "metadata": {"name": "small", "namespace": "default"}, "spec": {"hard": {"vram": "20Gi"}}});
        let file = world.log("quota").with_extension("json");
        std::fs::write(&file, quota.to_string()).unwrap();
        let (well, text) =
            world.kubectl("admin", &["create", "--filename", file.to_str().unwrap()]);
        assert!(well, "{text}");

        world.make_pod(sixteen_gib("first", "nvidia")).await;
        world.until_placed("first").await;

        // The scheduler writes the use into the status, and the webhook, which keeps no ledger, relies on it.
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let second = from(sixteen_gib("second", "nvidia"));
        let refusal = world
            .eventually("the second pod is refused", async || {
                let made = world.pods().create(&dry, &second).await;
                made.err().map(|error| error.to_string())
            })
            .await;
        let why = "exceeded quota: ComputeQuota small allows 20480 MiB of vram in namespace default, its pods hold \
                   16384 MiB, and this pod asks for 16384 MiB";
        assert!(refusal.contains(why), "{refusal}");
        world.remove_pod("first").await;
        world
            .eventually("the second pod is let in", async || {
                world.pods().create(&dry, &second).await.ok().map(drop)
            })
            .await;
        world.kubectl("admin", &["delete", "cq/small"]);
    });
}
