use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn parent(dir: &Path) -> OwnedFd {
    nix::fcntl::open(dir, DIR_FLAGS, Mode::empty()).unwrap()
}

fn names(root: &Path) -> (Vec<String>, Scan) {
    let mut names = Vec::new();
    let found = scan(root, &mut |instance| {
        let below = instance.path().strip_prefix(root).unwrap();
        names.push(below.display().to_string());
    });
    (names, found.unwrap())
}

#[test]
fn labels_round_trip_and_every_field_is_optional() {
    let dir = tempfile::tempdir().unwrap();
    let labels = Labels {
        name: String::from("a"),
        command: vec![String::from("python"), String::from("x y")],
        created_unix: 7,
        runner_pid: 8,
        outer_limits: Some(PathBuf::from("/l")),
        ..Labels::default()
    };
    let (instance, _lock) =
        Instance::create(&parent(dir.path()), dir.path(), "a", &labels).unwrap();
    assert_eq!(instance.labels().unwrap(), labels);

    fs::write(
        dir.path().join("a/container.json"),
        r#"{"name":"b","new":1}"#,
    )
    .unwrap();
    assert_eq!(
        instance.labels().unwrap(),
        Labels {
            name: String::from("b"),
            ..Labels::default()
        }
    );
    fs::write(dir.path().join("a/container.json"), vec![b' '; 300 << 10]).unwrap();
    let error = instance.labels().unwrap_err().to_string();
    assert!(error.contains("larger than 262144 bytes"), "{error}");
}

#[test]
fn labels_of_a_very_long_command_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let parent = parent(dir.path());
    let engine = EngineContainer {
        id: String::from("e"),
        started_ticks: started_ticks(std::process::id()).unwrap(),
        pid_namespace: 0,
    };
    let labels = |command: Vec<String>| Labels {
        command,
        runner_pid: std::process::id(),
        engine: Some(engine.clone()),
        ..Labels::default()
    };
    for (name, word, count) in [
        ("long", "\u{1}".repeat(300 << 10), 2),
        ("many", String::new(), 100_000),
        ("wide", "ä".repeat(100 << 10), 1),
    ] {
        let command = [vec![String::from("python")], vec![word; count]].concat();

        let (instance, mut lock) =
            Instance::create(&parent, dir.path(), name, &labels(command.clone())).unwrap();
        lock.rewrite(&labels(command)).unwrap();
        drop(lock);

        let read = instance.labels().unwrap();
        assert_eq!(read.command[0], "python");
        assert!(read.command.last().unwrap().ends_with('…'), "{name}");
        assert!(instance.runner_lives(), "{name}");
    }
}

#[test]
fn runner_lives_until_its_lock_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let labels = Labels::default();
    let (instance, lock) = Instance::create(&parent(dir.path()), dir.path(), "a", &labels).unwrap();
    for _ in 0..3 {
        assert!(instance.runner_lives());
    }

    drop(lock);

    assert!(!instance.runner_lives());
}

#[test]
fn an_engines_container_lives_for_a_process_that_cannot_see_it() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let here = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    let own = std::process::id();
    let instance = {
        let made = Instance::create(&parent(dir.path()), dir.path(), "a", &Labels::default());
        made.unwrap().0
    };
    // No process has this number.
    let none = 1_u32 << 30;
    for (pid, namespace, lives) in [
        (own, here, true),
        (none, here, false),
        (none, 0, false),
        (none, here + 1, true),
    ] {
        let text = format!(
            r#"{{"runner_pid":{pid},"engine":{{"id":"e","started_ticks":0,"pid_namespace":{namespace}}}}}"#
        );
        fs::write(dir.path().join("a/container.json"), text).unwrap();

        assert_eq!(instance.runner_lives(), lives, "{pid} {namespace}");
    }
}

#[test]
fn a_job_of_slurm_lives_while_its_record_exists() {
    let dir = tempfile::tempdir().unwrap();
    let create = |name: &str, boot: String| {
        let labels = Labels {
            slurm: Some(SlurmJob { id: 12, boot }),
            ..Labels::default()
        };
        let (instance, lock) =
            Instance::create(&parent(dir.path()), dir.path(), name, &labels).unwrap();
        drop(lock);
        instance
    };
    let job = create("slurm-12", boot());
    let before_the_boot = create("old", String::from("another"));
    assert!(!job.runner_lives());

    let records = dir.path().join(SLURM_RECORDS);
    fs::create_dir(&records).unwrap();
    fs::write(records.join("12"), "").unwrap();
    assert!(job.runner_lives());
    assert!(!before_the_boot.runner_lives());

    fs::remove_file(records.join("12")).unwrap();
    assert!(!job.runner_lives());
}

#[test]
fn a_name_is_taken_once() {
    let dir = tempfile::tempdir().unwrap();
    let make = || Instance::create(&parent(dir.path()), dir.path(), "a", &Labels::default());
    let _first = make().unwrap();

    assert_eq!(make().unwrap_err().errno(), Some(Errno::EEXIST));
}

#[test]
fn removal_deletes_a_region_that_was_half_made() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, _) =
        Instance::create(&parent(dir.path()), dir.path(), "a", &Labels::default()).unwrap();
    fs::write(
        instance.path().join(".region.7.1795786334061858881.new"),
        "",
    )
    .unwrap();

    instance.remove(&parent(dir.path())).unwrap();

    assert!(!dir.path().join("a").exists());
}

#[test]
fn removal_deletes_known_names_and_follows_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    fs::write(&kept, "").unwrap();
    let make = |name: &str| {
        let (instance, _) =
            Instance::create(&parent(dir.path()), dir.path(), name, &Labels::default()).unwrap();
        symlink(&kept, instance.path().join(REGION)).unwrap();
        instance
    };
    make("a").remove(&parent(dir.path())).unwrap();
    assert!(kept.exists() && !dir.path().join("a").exists());

    let instance = make("b");
    fs::write(instance.path().join("mine"), "").unwrap();
    assert!(instance.remove(&parent(dir.path())).is_err());
    assert!(dir.path().join("b/mine").exists());
}

#[test]
fn scan_finds_instances_three_levels_deep() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    for path in [
        "a",
        "0/b",
        "pod/x/c",
        "too/deep/for/d",
        "0/empty",
        ".hidden",
        "elsewhere",
    ] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    for path in ["a", "0/b", "pod/x/c", "too/deep/for/d", ".hidden"] {
        fs::write(root.join(path).join("limits"), "").unwrap();
    }
    fs::rename(root.join("elsewhere"), dir.path().join("elsewhere")).unwrap();
    fs::write(dir.path().join("elsewhere/limits"), "").unwrap();
    symlink(dir.path().join("elsewhere"), root.join("link")).unwrap();
    fs::write(root.join("file"), "").unwrap();

    let (found, scan) = names(&root);

    assert_eq!(found, ["0/b", "a", "pod/x/c"]);
    assert_eq!(scan.broken.len(), 1, "{scan:?}");
    assert!(scan.broken[0].path.ends_with("link"));
}

#[test]
fn directory_writable_by_others_is_reported_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a", "open/b"] {
        fs::create_dir_all(dir.path().join(path)).unwrap();
        fs::write(dir.path().join(path).join("region"), "").unwrap();
    }
    let open = dir.path().join("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();

    let (found, scan) = names(dir.path());

    assert_eq!(found, ["a"]);
    assert!(
        scan.broken[0].reason.contains("no other user may write it"),
        "{scan:?}"
    );
}

#[test]
fn missing_root_is_an_error_and_a_vanished_entry_is_not() {
    let dir = tempfile::tempdir().unwrap();

    assert_eq!(
        scan(&dir.path().join("none"), &mut |_| ())
            .unwrap_err()
            .errno(),
        Some(Errno::ENOENT)
    );
    assert_eq!(names(dir.path()).0, [""; 0]);
}

#[test]
fn directories_per_owner_are_bounded_and_reported_once() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..DIRECTORIES_MOST + 50 {
        fs::create_dir(root.path().join(format!("{number:05}"))).unwrap();
    }

    let found = scan(root.path(), &mut |_| panic!("no instance is here")).unwrap();

    let [broken] = &found.broken[..] else {
        panic!("{:?}", found.broken)
    };
    assert!(broken.path.ends_with(format!("{DIRECTORIES_MOST:05}")));
    assert!(
        broken.reason.contains("more than 4096 directories"),
        "{}",
        broken.reason
    );
}

#[test]
fn processes_of_an_instance_are_found_by_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, _lock) =
        Instance::create(&parent(dir.path()), dir.path(), "a", &Labels::default()).unwrap();
    assert!(instance.is_deserted());

    let mut child = std::process::Command::new("sleep")
        .arg("30")
        .env("VGPU_LIMITS", instance.path().join(LIMITS))
        .spawn()
        .unwrap();
    // A program that has just been started has its environment a moment later.
    let mut found = instance.started_under().unwrap();
    for _look in 0..1_000 {
        if !found.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        found = instance.started_under().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(found, [child.id()]);
    assert!(instance.is_deserted());
}

#[test]
fn process_lives_until_its_last_thread_has_ended() {
    let stat = |state: &str, threads: u32| {
        format!("7 (a) b) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0")
    };
    for (state, threads, started) in [
        ("S", 1, Some(4711)),
        ("R", 9, Some(4711)),
        ("Z", 2, Some(4711)),
        ("Z", 1, None),
        ("Z", 0, None),
        ("X", 0, None),
    ] {
        assert_eq!(
            started_ticks_in(&stat(state, threads)),
            started,
            "{state} {threads}"
        );
    }
    assert_eq!(started_ticks_in("7 (a) S 1"), None);
    assert_eq!(started_ticks_in(""), None);
}
