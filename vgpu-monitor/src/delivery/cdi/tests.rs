use super::*;
use serde_json::Map;
use supervisor::vendor::{LEAST_VERSION, add};

/// A vendor's specification with these devices, each a name with its nodes.
fn vendor(version: &str, devices: &[(&str, &[&str])]) -> String {
    let nodes = |paths: &[&str]| -> Vec<Value> {
        paths.iter().map(|path| json!({ "path": path })).collect()
    };
    let device = |(name, paths): &(&str, &[&str])| json!({ "name": name, "containerEdits": { "deviceNodes": nodes(paths) } });
    let devices: Vec<_> = devices.iter().map(device).collect();
    json!({
        "cdiVersion": version,
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": { "deviceNodes": nodes(&["/dev/nvidiactl"]), "env": ["A=1"] },
    })
    .to_string()
}

fn gpu(uuid: &str, index: u32, minor: u32) -> Wanted {
    Wanted {
        uuid: uuid.to_owned(),
        gpu: uuid.to_owned(),
        index: Some(index),
        minor: Some(minor),
        instance: None,
    }
}

fn instance(uuid: &str, gpu: &str, gpu_instance: u32, compute_instance: u32) -> Wanted {
    Wanted {
        uuid: uuid.to_owned(),
        instance: Some(InstanceIds {
            gpu_instance,
            compute_instance,
        }),
        ..self::gpu(gpu, 0, 0)
    }
}

struct Dirs(tempfile::TempDir);

impl Dirs {
    /// Files as `DIRECTORY/NAME` with what is in them.
    fn with(files: &[(&str, &str)]) -> Self {
        let dirs = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = dirs.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dirs
    }

    /// The version, and the nodes that these GPUs bring.
    fn nodes(&self, wanted: &[Wanted]) -> Result<(String, Vec<String>), String> {
        let dirs = ["etc", "run"].map(|dir| self.0.path().join(dir));
        let vendor = Vendor {
            dirs: &dirs,
            kind: "nvidia.com/gpu",
            capabilities: &self.0.path().join("capabilities"),
            is_ours: |file| own_name(file).is_some(),
        };
        let edits = vendor.edits(wanted).map_err(|error| error.to_string())?;
        let nodes = edits.edits["deviceNodes"].as_array().unwrap().iter();
        let nodes = nodes.map(|node| node["path"].as_str().unwrap().to_owned());
        Ok((edits.version.to_string(), nodes.collect()))
    }
}

#[test]
fn gpu_is_matched_by_uuid_number_or_device_node() {
    let by_uuid: &[(&str, &[&str])] = &[
        ("GPU-a", &["/dev/nvidia0"]),
        ("GPU-b", &["/dev/nvidia1"]),
        ("MIG-x", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"]),
        ("all", &["/dev/nvidia0", "/dev/nvidia1"]),
    ];
    let by_index: &[(&str, &[&str])] = &[
        ("0", &["/dev/nvidia0"]),
        ("1", &["/dev/nvidia1"]),
        ("1:0", &["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3"]),
        ("all", &["/dev/nvidia0", "/dev/nvidia1"]),
    ];
    let by_kind: &[(&str, &[&str])] = &[("gpu0", &["/dev/nvidia0"]), ("gpu1", &["/dev/nvidia1"])];
    // As on WSL: one node for whatever there is.
    let shared: &[(&str, &[&str])] = &[("0", &["/dev/dxg"]), ("all", &["/dev/dxg"])];
    let only_all: &[(&str, &[&str])] = &[("all", &["/dev/nvidia3"])];
    let both_in_all: &[(&str, &[&str])] = &[("all", &["/dev/nvidia0", "/dev/nvidia1"])];
    let some = |nodes: &'static [&str]| Some(nodes);
    let unknown_now = Wanted {
        index: None,
        minor: None,
        ..gpu("GPU-a", 0, 0)
    };
    for (devices, wanted, nodes) in [
        (by_uuid, gpu("GPU-b", 1, 1), some(&["/dev/nvidia1"])),
        (by_uuid, unknown_now.clone(), some(&["/dev/nvidia0"])),
        (
            by_uuid,
            gpu("MIG-x", 7, 7),
            some(&["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"]),
        ),
        (
            by_uuid,
            instance("MIG-x", "GPU-a", 1, 0),
            some(&["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"]),
        ),
        (by_index, gpu("GPU-b", 1, 1), some(&["/dev/nvidia1"])),
        // The numbers have changed since the specification was written.
        (by_index, gpu("GPU-b", 0, 1), some(&["/dev/nvidia1"])),
        (by_index, gpu("GPU-c", 0, 2), None),
        (by_index, unknown_now, None),
        (by_kind, gpu("GPU-b", 1, 1), some(&["/dev/nvidia1"])),
        (shared, gpu("GPU-b", 0, 0), some(&["/dev/dxg"])),
        (only_all, gpu("GPU-a", 0, 3), some(&["/dev/nvidia3"])),
        (both_in_all, gpu("GPU-a", 0, 0), None),
        // Nothing says how an instance is opened here: its GPU's node it is.
        (
            by_index,
            instance("MIG-z", "GPU-a", 1, 0),
            some(&["/dev/nvidia0"]),
        ),
    ] {
        let dirs = Dirs::with(&[("etc/nvidia.json", &vendor("0.6.0", devices))]);
        let found = dirs.nodes(std::slice::from_ref(&wanted));
        match nodes {
            Some(nodes) => {
                let all = [&["/dev/nvidiactl"], nodes].concat();
                assert_eq!(
                    found,
                    Ok((
                        String::from("0.6.0"),
                        all.iter().map(ToString::to_string).collect()
                    )),
                    "{wanted:?}"
                );
            }
            None => {
                let error = found.unwrap_err();
                assert!(
                    error.contains("describes no device for GPU GPU-"),
                    "{error}"
                );
                assert!(
                    error.contains("nvidia-ctk cdi generate --output="),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn on_demand_instance_gets_gpu_node_and_two_caps_nodes() {
    let spec = vendor("0.6.0", &[("0", &["/dev/nvidia0"])]);
    let access = |number: u32| format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\n");
    let dirs = Dirs::with(&[
        ("etc/nvidia.json", &spec),
        ("capabilities/gpu0/mig/gi2/access", &access(21)),
        ("capabilities/gpu0/mig/gi2/ci0/access", &access(22)),
        ("capabilities/gpu0/mig/gi3/access", "nothing"),
    ]);

    let (_, nodes) = dirs.nodes(&[instance("MIG-z", "GPU-a", 2, 0)]).unwrap();
    assert_eq!(
        nodes,
        [
            "/dev/nvidiactl",
            "/dev/nvidia0",
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-caps/nvidia-cap22"
        ]
    );
    for (gpu_instance, part) in [
        (3, "has no line DeviceFileMinor"),
        (4, "gi4/access: No such file"),
    ] {
        let error = dirs
            .nodes(&[instance("MIG-z", "GPU-a", gpu_instance, 0)])
            .unwrap_err();
        assert!(
            error.contains("how MIG instance MIG-z is opened") && error.contains(part),
            "{error}"
        );
    }
}

#[test]
fn later_directory_and_highest_cdi_version_win() {
    let one = vendor(
        "0.5.0",
        &[("GPU-a", &["/dev/old"]), ("GPU-b", &["/dev/nvidia1"])],
    );
    let two = vendor("1.0.0", &[("GPU-a", &["/dev/nvidia0"])]);
    let dirs = Dirs::with(&[
        ("etc/nvidia.json", &one),
        ("run/nvidia.json", &two),
        (
            "run/other.yaml",
            "cdiVersion: 0.3.0\nkind: other.com/nic\ndevices: []\n",
        ),
        ("run/broken.yaml", "kind: [nvidia.com/gpu"),
        ("run/vgpu-v0.json", "{}"),
        ("run/notes.txt", "GPU-b"),
    ]);

    let (version, nodes) = dirs
        .nodes(&[gpu("GPU-a", 0, 0), gpu("GPU-b", 1, 1)])
        .unwrap();

    assert_eq!(version, "1.0.0");
    assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]);
}

#[test]
fn bad_vendor_specification_error_names_file_and_remedy() {
    let good = vendor("0.6.0", &[]);
    for (files, part) in [
        (&[][..], "/run (not there), "),
        (&[("etc/readme", "")], "/etc (nothing)"),
        (
            &[(
                "etc/x.json",
                "{\"cdiVersion\":\"0.6.0\",\"kind\":\"x.com/y\"}",
            )],
            "/etc (1 of other kinds)",
        ),
        (
            &[("etc/nvidia.json", &good[..40])],
            "/etc/nvidia.json (cannot be read: EOF",
        ),
        (
            &[("etc/nvidia.yaml", "devices: 7")],
            "/etc/nvidia.yaml (cannot be read:",
        ),
        (
            &[("etc/nvidia.json", &good.replace("0.6.0", "new"))],
            "cdiVersion \"new\" is no version",
        ),
        (&[("etc/nvidia.json/x", "")], "not a regular file"),
    ] {
        let error = Dirs::with(files).nodes(&[gpu("GPU-a", 0, 0)]).unwrap_err();
        assert!(
            error.starts_with(
                "there is no CDI specification of nvidia.com/gpu on this node: looked in"
            ),
            "{error}"
        );
        assert!(error.contains(part), "{error}");
        assert!(
            error.ends_with("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
            "{error}"
        );
    }
    let none = Dirs::with(&[("etc/nvidia.json", &good)])
        .nodes(&[gpu("GPU-a", 0, 0)])
        .unwrap_err();
    assert!(none.contains("for GPU GPU-a (it has none)"), "{none}");
}

#[test]
fn shared_edits_appear_once_and_ours_come_last() {
    let edits = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    let mut all = Map::new();
    for text in [
        r#"{"env":["A=1","NVIDIA_VISIBLE_DEVICES=all"],"mounts":[{"containerPath":"/etc/ld.so.preload","hostPath":"/x"}],
            "hooks":[{"path":"/h","args":["1"]}],"additionalGIDs":[44],"intelRdt":{"schema":"a"}}"#,
        r#"{"env":["A=1","B=2"],"mounts":[{"containerPath":"/lib/a","hostPath":"/1"},{"containerPath":"/lib/a","hostPath":"/2"}],
            "hooks":[{"path":"/h","args":["1"]},{"path":"/h","args":["2"]}],"additionalGIDs":[44,45],"deviceNodes":null}"#,
    ] {
        add(&mut all, &edits(text));
    }
    let vendor = Edits {
        version: LEAST_VERSION,
        edits: all,
    };
    let mount = Mount {
        host: PathBuf::from("/p"),
        container: PathBuf::from("/etc/ld.so.preload"),
        read_only: true,
    };
    let env = [(String::from("B"), String::from("ours"))];

    let text = describe(&Name(String::from("v1")), vendor, &[mount], &env);

    let spec: Value = serde_json::from_slice(&text).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    assert_eq!(
        edits["env"],
        json!(["A=1", "B=ours", "NVIDIA_VISIBLE_DEVICES=void"])
    );
    assert_eq!(
        edits["hooks"],
        json!([{"path":"/h","args":["1"]},{"path":"/h","args":["2"]}])
    );
    assert_eq!(edits["additionalGIDs"], json!([44, 45]));
    assert_eq!(edits["intelRdt"], json!({"schema":"a"}));
    let mounts: Vec<_> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| &mount["hostPath"])
        .collect();
    assert_eq!(mounts, ["/1", "/p"]);
    assert_eq!(spec["cdiVersion"], "0.5.0");
}
