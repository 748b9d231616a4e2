//! The changes that a tenant or a stranger can make to the files below the root: each is skipped and counted,
//! and the container beside it is shown all the same.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Board, private};
use nix::sys::stat::Mode;
use prometheus_client::registry::Registry;
use proptest::prelude::*;
use server::Readiness;
use vgpu_monitor::exporter::{Names, Shown};
use vgpu_monitor::node::{Node, NodeCollector};

/// Far more than a look takes; without it a hanging look would hang the test run.
const HANGS: Duration = Duration::from_secs(60);

fn node(root: &Path) -> Arc<Node> {
    Arc::new(Node::new(
        root.to_owned(),
        "n".to_owned(),
        Names::WithLegacy,
        None,
    ))
}

fn look(node: &Arc<Node>) -> Shown {
    let (sender, receiver) = channel();
    let node = Arc::clone(node);
    std::thread::spawn(move || {
        drop(sender.send(node.look(&Readiness::waiting_for("the first look"))));
    });
    receiver.recv_timeout(HANGS).expect("a look ends")
}

fn names(shown: &Shown) -> Vec<&str> {
    shown
        .containers
        .iter()
        .map(|container| container.container.as_str())
        .collect()
}

/// Spoils one container beside a good one, and expects the good one, and the other counted.
fn check(what: &str, spoil: impl FnOnce(&Path)) {
    let board = Board::new();
    board.container("good", 1 << 30);
    let spoilt = board.container("spoilt", 1 << 30);
    spoil(&spoilt);

    let node = node(board.root());
    let first = look(&node);
    let second = look(&node);

    assert_eq!(names(&first), ["good"], "{what}");
    assert_eq!(first.look.broken, 1, "{what}");
    assert_eq!(second.look.skipped[0], ("broken", 2), "{what}");
    assert!(first.look.root_readable, "{what}");
}

fn replace(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    fs::remove_file(&path).unwrap();
    path
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
}

#[test]
fn region_of_wrong_size_is_skipped() {
    let whole = fs::metadata(Board::new().container("a", 1).join("region"))
        .unwrap()
        .len();
    for length in [
        0,
        1,
        64,
        4095,
        4096,
        whole / 2,
        whole - 1,
        whole + 1,
        1 << 40,
    ] {
        check(&format!("{length} bytes"), |dir| {
            let region = OpenOptions::new()
                .write(true)
                .open(dir.join("region"))
                .unwrap();
            region.set_len(length).unwrap();
        });
    }
}

#[test]
fn region_that_is_no_file_is_skipped_without_blocking() {
    check("a pipe", |dir| fifo(&replace(dir, "region")));
    check("a directory", |dir| {
        fs::create_dir(replace(dir, "region")).unwrap()
    });
    check("a socket", |dir| {
        drop(std::os::unix::net::UnixListener::bind(replace(dir, "region")).unwrap());
    });
    check("a link to another's", |dir| {
        let other = dir.parent().unwrap().join("good/region");
        symlink(other, replace(dir, "region")).unwrap();
    });
    check("a link to an endless file", |dir| {
        symlink("/dev/zero", replace(dir, "region")).unwrap();
    });
    check("a link to itself", |dir| {
        symlink("region", replace(dir, "region")).unwrap();
    });
    check("nothing", |dir| drop(replace(dir, "region")));
}

#[test]
fn region_of_holes_or_noise_is_skipped() {
    let size = |dir: &Path| fs::metadata(dir.join("region")).unwrap().len();
    check("holes", |dir| {
        let size = size(dir);
        File::create(replace(dir, "region"))
            .unwrap()
            .set_len(size)
            .unwrap();
    });
    for byte in [0x00, 0x41, 0xff] {
        check("one byte all over", |dir| {
            fs::write(
                dir.join("region"),
                vec![byte; usize::try_from(size(dir)).unwrap()],
            )
            .unwrap();
        });
    }
    check("another release's", |dir| {
        let region = OpenOptions::new()
            .write(true)
            .open(dir.join("region"))
            .unwrap();
        region.write_all_at(&99_u32.to_le_bytes(), 8).unwrap();
    });
}

#[test]
fn limits_not_written_by_the_host_are_skipped() {
    check("no limits", |dir| drop(replace(dir, "limits")));
    check("a pipe", |dir| fifo(&replace(dir, "limits")));
    check("a link", |dir| {
        let other = dir.parent().unwrap().join("good/limits");
        symlink(other, replace(dir, "limits")).unwrap();
    });
    check("noise", |dir| {
        fs::write(dir.join("limits"), vec![0x5a; 12_288]).unwrap()
    });
    check("empty", |dir| {
        File::create(dir.join("limits"))
            .unwrap()
            .set_len(0)
            .unwrap()
    });
    check("writable by all users", |dir| {
        private(&dir.join("limits"), 0o666)
    });
}

#[test]
fn unreadable_labels_are_skipped() {
    check("no JSON", |dir| {
        fs::write(dir.join("container.json"), "{\"name\": ").unwrap()
    });
    check("of another type", |dir| {
        fs::write(dir.join("container.json"), "[1]").unwrap()
    });
    check("no text", |dir| {
        fs::write(dir.join("container.json"), [0xff, 0xfe]).unwrap()
    });
    check("deep", |dir| {
        fs::write(dir.join("container.json"), "[".repeat(200_000)).unwrap()
    });
    check("large", |dir| {
        let large = format!("{{\"name\": \"{}\"}}", "x".repeat(1 << 20));
        fs::write(dir.join("container.json"), large).unwrap();
    });
    check("endless", |dir| {
        File::create(dir.join("container.json"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
    });
    check("a pipe", |dir| fifo(&replace(dir, "container.json")));
}

#[test]
fn linked_or_world_writable_directory_is_skipped() {
    check("writable by all users", |dir| private(dir, 0o777));
    check("a link to another's", |dir| {
        let other = dir.parent().unwrap().join("good");
        fs::rename(dir, dir.parent().unwrap().join(".moved")).unwrap();
        symlink(other, dir).unwrap();
    });
}

#[test]
fn files_and_hidden_directories_are_no_containers() {
    let board = Board::new();
    board.container("good", 1);
    fs::write(board.root().join("README"), "x").unwrap();
    fifo(&board.root().join("pipe"));
    fs::create_dir_all(board.root().join(".lock/limits")).unwrap();
    fs::create_dir_all(board.root().join("empty/and/deep/and/deeper")).unwrap();

    let shown = look(&node(board.root()));

    assert_eq!(names(&shown), ["good"]);
    assert_eq!(shown.look.broken, 0);
}

#[test]
fn region_changed_during_a_scrape_breaks_nothing_else() {
    let board = Board::new();
    board.container("good", 1 << 30);
    let dir = board.container("swapped", 1 << 30);
    let whole = fs::metadata(dir.join("region")).unwrap().len();
    fs::copy(dir.join("region"), dir.join("spare")).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let swapper = {
        let done = Arc::clone(&done);
        std::thread::spawn(move || {
            let region = dir.join("region");
            let mut turn = 0_u64;
            while !done.load(Ordering::Relaxed) {
                turn += 1;
                match turn % 4 {
                    0 => drop(fs::copy(dir.join("spare"), &region)),
                    1 => {
                        let file = OpenOptions::new().write(true).open(&region).unwrap();
                        file.set_len(turn.wrapping_mul(7919) % whole).unwrap();
                    }
                    2 => {
                        fs::remove_file(&region).unwrap();
                        fifo(&region);
                    }
                    _ => {
                        fs::remove_file(&region).unwrap();
                        File::create(&region).unwrap().set_len(whole).unwrap();
                    }
                }
            }
        })
    };

    let node = node(board.root());
    for _ in 0..100 {
        assert_eq!(names(&look(&node))[0], "good");
    }
    done.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
}

#[test]
fn limits_truncated_during_a_scrape_break_nothing_else() {
    // Under `vgpu run` the limits are their user's own file: a mapping of it would end us here.
    let board = Board::new();
    board.container("good", 1 << 30);
    let limits = board.container("shortened", 1 << 30).join("limits");
    let whole = fs::read(&limits).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let shortener = {
        let done = Arc::clone(&done);
        std::thread::spawn(move || {
            let file = OpenOptions::new().write(true).open(&limits).unwrap();
            while !done.load(Ordering::Relaxed) {
                file.write_all_at(&whole, 0).unwrap();
                file.set_len(0).unwrap();
            }
        })
    };

    let node = node(board.root());
    for _ in 0..150 {
        assert_eq!(names(&look(&node))[0], "good");
    }
    done.store(true, Ordering::Relaxed);
    shortener.join().unwrap();
}

#[test]
fn ten_thousand_directories_are_read_up_to_a_bound() {
    let board = Board::new();
    // Sorted before the others, so that a bound on all of them does not hide it.
    board.container("00-good", 1 << 30);
    for number in 0..10_000 {
        fs::create_dir(board.root().join(format!("1000/x{number:05}"))).unwrap();
    }

    let shown = look(&node(board.root()));

    assert_eq!(names(&shown), ["00-good"]);
    assert_eq!(shown.look.broken, 1, "said once");
}

#[test]
fn missing_root_holds_no_container() {
    let board = Board::new();

    let shown = look(&node(&board.root().join("later")));

    assert!(shown.look.root_readable);
    assert_eq!((shown.containers.len(), shown.look.broken), (0, 0));
}

#[test]
fn unreadable_root_is_reported() {
    let board = Board::new();
    let file = board.root().join("file");
    fs::write(&file, "").unwrap();
    let readiness = Readiness::waiting_for("the first look");

    let shown = node(&file).look(&readiness);

    assert!(!shown.look.root_readable);
    assert_eq!(shown.look.skipped.last(), Some(&("root", 1)));
    assert!(
        readiness.reason().unwrap().contains("is not a directory"),
        "{readiness:?}"
    );
}

fn exposition(node: Arc<Node>) -> String {
    let mut registry = Registry::default();
    let readiness = Readiness::waiting_for("the first look");
    registry.register_collector(Box::new(NodeCollector::new(node, readiness)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// A sample as the format has it: name, labels whose values hold no raw quote or line end, number.
fn is_sample(line: &str) -> bool {
    let Some((name, rest)) = line
        .split_once('{')
        .map_or_else(|| line.split_once(' '), Some)
    else {
        return false;
    };
    let number = match line.contains('{') {
        false => rest,
        true => {
            let (mut quoted, mut escaped, mut end) = (false, false, None);
            for (at, byte) in rest.bytes().enumerate() {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    b'}' if !quoted => {
                        end = Some(at);
                        break;
                    }
                    _ => {}
                }
            }
            let Some(end) = end else { return false };
            rest[end + 1..].trim_start()
        }
    };
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && number.parse::<f64>().is_ok()
}

#[test]
fn hostile_names_stay_one_label_each() {
    let hostile = [
        "quote\" line\nend \\ brace} 1".to_owned(),
        "\u{202e}\u{0}\u{7f}\u{1b}[2J".to_owned(),
        "x".repeat(50_000),
        "ü 漢字 🦀".to_owned(),
        String::new(),
        "{{}}=,".to_owned(),
    ];
    let board = Board::new();
    for (number, name) in hostile.iter().enumerate() {
        let labels =
            serde_json::json!({ "name": name, "container": name, "namespace": name, "pod": name });
        board.container_with(&number.to_string(), 1, &labels);
    }

    let text = exposition(node(board.root()));

    let limits = text
        .lines()
        .filter(|l| l.starts_with("hami_vgpu_memory_limit_bytes{"));
    assert_eq!(limits.count(), hostile.len());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(is_sample(line), "{line}");
        assert!(
            line.len() < 4096 && !line.chars().any(char::is_control),
            "{line}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_in_a_region_never_break_a_scrape(
        writes in prop::collection::vec(
            (
                prop_oneof![0_u64..512, 0_u64..24_576, 417_792_u64..460_000, 0_u64..2_777_088],
                prop_oneof![
                    any::<u64>().prop_map(|word| word.to_le_bytes().to_vec()),
                    Just(vec![0xff; 8]),
                    prop::collection::vec(any::<u8>(), 1..64),
                ],
            ),
            1..24,
        ),
    ) {
        let board = Board::new();
        board.container("good", 1 << 30);
        let region = board.container("noise", 1 << 30).join("region");
        let whole = fs::metadata(&region).unwrap().len();
        let file = OpenOptions::new().write(true).open(&region).unwrap();
        for (at, bytes) in writes {
            file.write_all_at(&bytes, at.min(whole - bytes.len() as u64)).unwrap();
        }

        let node = node(board.root());
        let shown = look(&node);

        prop_assert_eq!(shown.containers.len() as u64 + shown.look.broken, 2);
        prop_assert_eq!(names(&shown)[0], "good");
        for line in exposition(node).lines().filter(|line| !line.starts_with('#')) {
            prop_assert!(is_sample(line), "{}", line);
        }
    }
}
