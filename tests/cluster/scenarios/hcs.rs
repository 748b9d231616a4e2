//! hcs.io on a real API server: its definitions are taken, and the documented examples apply as they are.

use crate::world::within;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_documented_examples_apply_unchanged() {
    within(async |world| {
        let apply = |file: &str| {
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
        };
        let (well, text) = apply("charts/vgpu/files/hcs-crds.yaml");
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
        world.kubectl("admin", &["create", "namespace", "team-a"]);

        for example in ["compute-node", "compute-quota", "compute-task"] {
            let applied = world
                .eventually("the kind is served", async || {
                    let (well, text) = apply(&format!("examples/hcs/{example}.yaml"));
                    (well || !text.contains("no matches for kind")).then_some((well, text))
                })
                .await;
            assert!(applied.0, "{}", applied.1);
        }
        let (_, shown) = world.kubectl("admin", &["get", "cn,cq,ct", "--all-namespaces"]);
        for name in ["gpu-node-1", "team-a-quota", "train-once"] {
            assert!(shown.contains(name), "{shown}");
        }

        // The API server itself refuses what means nothing.
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
