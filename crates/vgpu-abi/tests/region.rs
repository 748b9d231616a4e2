//! One process and a usage region: what it charges, what it is refused, what the host reads.

use crate::common::RegionDir;
use vgpu_abi::file::{FileError, FileKind};
use vgpu_abi::host;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{
    Bounds, Kind, MemoryHolder, NewDevice, Refusal, Region, ShareError, SharedKey, Why,
};

const GIB: u64 = 1 << 30;

#[test]
fn reservation_is_confirmed_or_refunded() {
    let place = RegionDir::new();
    let region = place.open();

    let first = region.reserve(0, 3 * GIB, 4 * GIB).unwrap();
    assert_eq!((region.used(0), region.pending(0)), (0, 3 * GIB));
    region.confirm(first, Kind::Buffer);
    assert_eq!((region.used(0), region.pending(0)), (3 * GIB, 0));
    let second = region.reserve(0, GIB, 4 * GIB).unwrap();
    region.refund(second);
    assert_eq!((region.used(0), region.pending(0)), (3 * GIB, 0));
    region.release(0, 3 * GIB, Kind::Buffer);

    assert_eq!((region.used(0), region.used_by_me(0)), (0, 0));
    assert_eq!(region.used(1), 0);
}

#[test]
fn a_charge_past_the_limit_charges_nothing() {
    let place = RegionDir::new();
    let region = place.open();
    let first = region.reserve(0, 3 * GIB, 4 * GIB).unwrap();
    region.confirm(first, Kind::Buffer);

    let refusal = region.reserve(0, GIB + 1, 4 * GIB).unwrap_err();

    let expected = Refusal {
        limit: 4 * GIB,
        used: 3 * GIB,
        asked: GIB + 1,
        unaccounted: 0,
        why: Why::Full,
    };
    assert_eq!(refusal, expected);
    assert_eq!((region.used(0), region.pending(0)), (3 * GIB, 0));
    let exactly = region.reserve(0, GIB, 4 * GIB).unwrap();
    region.confirm(exactly, Kind::Buffer);
    assert_eq!(host::snapshot(&place.path()).unwrap().counters.refused, 1);
}

#[test]
fn past_the_device_share_only_pageable_memory_gets_room() {
    let place = RegionDir::new();
    let region = place.open();
    let bounds = Bounds {
        limit: 8 * GIB,
        resident: 4 * GIB,
    };
    let take = |bytes, pageable| {
        let reserved = if pageable {
            region.reserve_pageable(0, bytes, bounds)
        } else {
            region.reserve(0, bytes, bounds)
        };
        reserved
            .inspect(|charge| region.confirm(*charge, Kind::Buffer))
            .map(|charge| charge.is_beyond())
    };
    let refused = |limit, used, asked, why| {
        Err(Refusal {
            limit,
            used,
            asked,
            unaccounted: 0,
            why,
        })
    };

    assert_eq!(take(3 * GIB, true), Ok(false));
    assert_eq!(take(2 * GIB, true), Ok(true));
    assert_eq!(
        take(2 * GIB, false),
        refused(4 * GIB, 3 * GIB, 2 * GIB, Why::NotPageable)
    );
    // The rest of the share is still given as memory of the device.
    assert_eq!(take(GIB, false), Ok(false));
    assert_eq!(
        take(3 * GIB, true),
        refused(8 * GIB, 6 * GIB, 3 * GIB, Why::Full)
    );
    assert_eq!(take(2 * GIB, true), Ok(true));
    assert_eq!(
        (region.used(0), region.oversubscribed(0)),
        (8 * GIB, 4 * GIB)
    );
    assert_eq!(region.oversubscribed_by_me(0), 4 * GIB);

    region.release_beyond(0, 2 * GIB, Kind::Buffer);
    region.release(0, 3 * GIB, Kind::Buffer);
    assert_eq!(
        (region.used(0), region.oversubscribed(0)),
        (3 * GIB, 2 * GIB)
    );
    assert_eq!(take(3 * GIB, true), Ok(false));
    let undone = region.reserve_pageable(0, GIB, bounds).unwrap();
    assert!(undone.is_beyond());
    region.refund(undone);
    assert_eq!(
        (region.used(0), region.oversubscribed(0)),
        (6 * GIB, 2 * GIB)
    );
    let seen = host::snapshot(&place.path()).unwrap();
    let used = &seen.slots[0].devices[0];
    assert_eq!(used.oversubscribed_bytes, 2 * GIB);
    assert_eq!((used.confirmed_bytes, used.pending_bytes), (6 * GIB, 0));
}

#[test]
fn without_a_limit_only_impossible_sizes_are_refused() {
    let place = RegionDir::new();
    let region = place.open();

    let large = region.reserve(0, 1 << 43, 0).unwrap();
    let refusal = region.reserve(0, u64::MAX, 0).unwrap_err();
    let at_all = region.reserve(0, u64::MAX, u64::MAX).unwrap_err();

    assert_eq!((refusal.why, at_all.why), (Why::Full, Why::Full));
    assert_eq!(region.pending(0), 1 << 43);
    region.refund(large);
    assert_eq!(region.reserve(16, 1, 0).unwrap_err().why, Why::Closed);
}

#[test]
fn releasing_more_than_is_charged_stops_at_zero() {
    let place = RegionDir::new();
    let region = place.open();
    region.charge(0, 5, Kind::Context);

    region.release(0, 7, Kind::Context);
    region.release(0, 7, Kind::Module);

    assert_eq!((region.used(0), region.used_by_me(0)), (0, 0));
}

#[test]
fn an_estimate_is_settled_in_both_directions() {
    let place = RegionDir::new();
    let region = place.open();
    let context = region.reserve(1, 300, 1000).unwrap();
    region.confirm(context, Kind::Context);

    region.adjust(1, Kind::Context, 300, 250);
    assert_eq!(region.used(1), 250);
    region.adjust(1, Kind::Context, 250, 400);
    assert_eq!(region.used(1), 400);
    region.adjust(1, Kind::Context, 400, 400);

    let use_now = host::snapshot(&place.path()).unwrap().slots[0].devices[1];
    assert_eq!((use_now.context_bytes, use_now.confirmed_bytes), (400, 400));
}

#[test]
fn the_host_reads_what_the_container_wrote() {
    let place = RegionDir::new();
    let region = place.open();
    let seat = region.join().unwrap();
    region.charge(0, 10, Kind::Buffer);
    region.charge(0, 20, Kind::Context);
    region.charge(0, 30, Kind::Module);
    let pending = region.reserve(0, 5, 0).unwrap();
    region.count_hooks(3, 7);
    region.learn_context_bytes(1, 99);
    region.learn_module_bytes(1, 98);

    let snapshot = host::snapshot(&place.path()).unwrap();

    region.refund(pending);
    let [slot] = snapshot.slots.as_slice() else {
        panic!("one slot")
    };
    assert_eq!((slot.slot, slot.generation), (seat.slot, seat.generation));
    assert_eq!(slot.pid, std::process::id());
    assert!(!slot.name.is_empty());
    // Its own process holds the lock, and asks: to the kernel that is no conflict. The view of
    // another process is in tests/processes.rs.
    assert!(!slot.alive);
    let of_device = slot.devices[0];
    assert_eq!(
        (of_device.confirmed_bytes, of_device.pending_bytes),
        (60, 5)
    );
    assert_eq!(
        (
            of_device.buffer_bytes,
            of_device.context_bytes,
            of_device.module_bytes
        ),
        (10, 20, 30)
    );
    assert_eq!(snapshot.counters.hook_calls[3], 7);
    assert_eq!(snapshot.devices.len(), 2);
    assert_eq!(snapshot.devices[1].uuid.as_str(), "GPU-1");
    assert_eq!(
        (
            snapshot.devices[1].context_bytes,
            snapshot.devices[1].module_bytes
        ),
        (99, 98)
    );
    assert_eq!(region.device(1).unwrap().physical_bytes, 16 * GIB);
    assert_eq!(region.device(2), None);
}

#[test]
fn a_refusal_is_remembered_with_who_held_what() {
    let place = RegionDir::new();
    let region = place.open();
    region.charge(0, 3 * GIB, Kind::Buffer);
    let mut refusal = region.reserve(0, 2 * GIB, 4 * GIB).unwrap_err();
    refusal.unaccounted = GIB;

    for time in 0..70 {
        region.record_oom("cuMemAlloc_v2", 0, &refusal, time);
    }
    region.record_oom(&"x".repeat(100), 0, &refusal, 70);

    let ooms = host::snapshot(&place.path()).unwrap().ooms;
    assert_eq!(ooms.len(), 64);
    assert_eq!((ooms[0].number, ooms[0].time_unix_ns), (7, 7));
    let oom = &ooms[62];
    assert_eq!(
        (oom.call.as_str(), oom.device, oom.why),
        ("cuMemAlloc_v2", 0, Why::Full)
    );
    assert_eq!(
        (oom.asked, oom.limit, oom.used, oom.unaccounted),
        (2 * GIB, 4 * GIB, 3 * GIB, GIB)
    );
    assert_eq!(oom.pid, std::process::id());
    let me = MemoryHolder {
        pid: std::process::id(),
        slot: 0,
        bytes: 3 * GIB,
    };
    assert_eq!(oom.holders, [me]);
    assert_eq!(ooms[63].call, "x".repeat(47));
}

#[test]
fn shared_object_is_charged_once_until_its_last_release() {
    let place = RegionDir::new();
    let region = place.open();
    let key = SharedKey([1, 2]);
    region.charge(0, 100, Kind::Buffer);

    region.share(key, 0, 60, Kind::Buffer).unwrap();
    assert_eq!((region.used(0), region.used_by_me(0)), (100, 40));
    assert_eq!(
        region.share(key, 0, 1, Kind::Buffer),
        Err(ShareError::Exists)
    );
    assert_eq!(region.hold(key).unwrap().bytes, 60);
    assert_eq!(region.unhold(key), Ok(false));
    assert_eq!(region.used(0), 100);
    let shared = &host::snapshot(&place.path()).unwrap().shared;
    assert_eq!(
        (shared[0].key, shared[0].bytes, shared[0].holders.as_slice()),
        (key, 60, &[0][..])
    );
    assert_eq!(region.unhold(key), Ok(true));

    assert_eq!((region.used(0), region.shared(key)), (40, None));
    assert_eq!(region.unhold(key), Err(ShareError::Unknown));
    assert_eq!(region.hold(key), Err(ShareError::Unknown));
}

#[test]
fn a_full_table_leaves_the_charge_where_it_is() {
    let place = RegionDir::new();
    let region = place.open();
    region.charge(1, 3000, Kind::Buffer);
    for n in 0..2048 {
        region.share(SharedKey([n, n]), 1, 1, Kind::Buffer).unwrap();
    }

    let refused = region.share(SharedKey([9999, 0]), 1, 1, Kind::Buffer);

    assert_eq!(refused, Err(ShareError::TableFull));
    assert_eq!((region.used(1), region.used_by_me(1)), (3000, 3000 - 2048));
    assert_eq!(
        host::snapshot(&place.path()).unwrap().counters.shared_full,
        1
    );
    for n in 0..2048 {
        assert_eq!(region.unhold(SharedKey([n, n])), Ok(true));
    }
    assert_eq!(region.used(1), 3000 - 2048);
}

#[test]
fn leaving_gives_everything_back() {
    let place = RegionDir::new();
    let region = place.open();
    region.charge(0, 100, Kind::Buffer);
    region
        .share(SharedKey([1, 1]), 0, 60, Kind::Buffer)
        .unwrap();
    region.count_hooks(0, 3);
    region.count_wait(1, [0, 2_000_000, 0, 50_000]);
    region.count_wait(MAX_DEVICES, [1; 4]);

    region.leave();

    assert_eq!(region.used(0), 0);
    let snapshot = host::snapshot(&place.path()).unwrap();
    assert_eq!((snapshot.slots.len(), snapshot.shared.len()), (0, 0));
    assert_eq!(snapshot.counters.hook_calls[0], 3);
    let waits = snapshot.devices[1].waits;
    assert_eq!(waits.by_length, [0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(waits.ns_by_cause, [0, 2_000_000, 0, 50_000]);
    region.charge(0, 7, Kind::Buffer);
    assert_eq!((region.used(0), region.used_by_me(0)), (7, 7));
}

#[test]
fn two_copies_of_the_library_in_one_process_take_two_slots() {
    let place = RegionDir::new();
    let one = place.open();
    let two = place.open();
    one.charge(0, 1, Kind::Buffer);
    two.charge(0, 2, Kind::Buffer);

    assert_ne!(one.own_slot(), two.own_slot());
    assert_eq!(one.reap() + two.reap(), 0);
    assert_eq!(one.used(0), 3);
}

#[test]
fn other_file_is_refused_as_region_with_a_reason() {
    let place = RegionDir::new();
    let at = |name: &str| place.dir.path().join(name);
    std::os::unix::fs::symlink(place.path(), at("link")).unwrap();
    std::fs::write(at("short"), b"vgpuREGN").unwrap();
    let sized = |name: &str, bytes: u64| {
        std::fs::File::create(at(name))
            .unwrap()
            .set_len(bytes)
            .unwrap();
    };
    let whole = std::fs::metadata(place.path()).unwrap().len();
    sized("sparse", whole);
    std::fs::copy(place.path(), at("long")).unwrap();
    let long = std::fs::OpenOptions::new().write(true).open(at("long"));
    long.unwrap().set_len(whole + 1).unwrap();
    std::process::Command::new("mkfifo")
        .arg(at("pipe"))
        .status()
        .unwrap();

    let kind = FileKind::Region;
    let open = |name: &str| Region::open(&at(name)).unwrap_err();
    assert_eq!(open("nothing"), FileError::Missing);
    assert_eq!(open("link"), FileError::NotRegular);
    assert_eq!(open("pipe"), FileError::NotRegular);
    assert_eq!(
        Region::open(place.dir.path()).unwrap_err(),
        FileError::NotRegular
    );
    assert_eq!(open("short"), FileError::WrongSize { kind, found: 8 });
    assert_eq!(
        open("long"),
        FileError::WrongSize {
            kind,
            found: whole + 1
        }
    );
    assert_eq!(open("sparse"), FileError::Unfinished { kind });
    assert_eq!(
        Region::create(&place.path(), &[], 0o600),
        Err(FileError::Exists)
    );
    let many = [NewDevice::default(); 17];
    assert_eq!(
        Region::create(&at("many"), &many, 0o600),
        Err(FileError::TooManyDevices { asked: 17 })
    );
    let long = at(&"x".repeat(300));
    assert_eq!(Region::create(&long, &[], 0o600), Err(FileError::BadPath));

    let read = |name: &str| host::snapshot(&at(name)).unwrap_err();
    assert_eq!(read("nothing"), FileError::Missing);
    assert_eq!(read("link"), FileError::NotRegular);
    assert_eq!(read("pipe"), FileError::NotRegular);
    assert_eq!(
        host::snapshot(place.dir.path()).unwrap_err(),
        FileError::NotRegular
    );
    assert_eq!(read("short"), FileError::WrongSize { kind, found: 8 });
    assert_eq!(read("sparse"), FileError::Unfinished { kind });
    assert_eq!(
        host::snapshot("/dev/null".as_ref()),
        Err(FileError::NotRegular)
    );
}

#[test]
fn a_region_below_an_open_directory_is_found_by_name_only() {
    use std::os::fd::AsFd;
    let place = RegionDir::new();
    let directory = std::fs::File::open(place.dir.path()).unwrap();

    assert!(host::snapshot_at(directory.as_fd(), "region").is_ok());
    let outside = host::snapshot_at(directory.as_fd(), "../region");
    assert_eq!(outside, Err(FileError::Missing));
}

#[test]
fn many_who_make_the_same_region_get_the_same_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let region = Region::open_or_create(&path, &[NewDevice::default()], 0o600);
                let region = region.unwrap();
                region.charge(0, 1, Kind::Buffer);
                // The slot goes with the region.
                assert!(region.used(0) >= 1);
            });
        }
    });

    assert_eq!(Region::open(&path).unwrap().used(0), 0);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no half-made files stay");
}

#[test]
fn a_disk_without_room_is_an_error_and_no_signal() {
    // A file that may not grow beyond a megabyte stands for a disk that is full.
    let limited = std::env::var_os("VGPU_TEST_SMALL_DISK");
    let Some(path) = limited else {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("small");
        std::fs::create_dir(&mount).unwrap();
        let script = format!(
            "mount -t tmpfs -o size=1m none {0} && VGPU_TEST_SMALL_DISK={0}/region \"$0\" --exact \
             a_disk_without_room_is_an_error_and_no_signal --nocapture",
            mount.display()
        );
        let me = std::env::current_exe().unwrap();
        let mut unshare = std::process::Command::new("unshare");
        unshare
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .arg(me);
        let output = unshare.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && said.contains("unshare") {
            eprintln!("skipped: no private mount here: {said}");
            return;
        }
        assert!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stdout)
        );
        return;
    };
    let path = std::path::PathBuf::from(path);

    assert_eq!(Region::create(&path, &[], 0o600), Err(FileError::NoSpace));
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        0
    );
    std::fs::File::create(&path)
        .unwrap()
        .set_len(size_of::<vgpu_abi::layout::RegionLayout>() as u64)
        .unwrap();
    assert_eq!(Region::open(&path).unwrap_err(), FileError::NoSpace);
}

#[test]
fn room_is_kept_for_a_loading_runtime_for_at_most_a_minute() {
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;
    use vgpu_abi::layout::{DeviceUse, RegionLayout, Slot};

    let place = RegionDir::new();
    let region = place.open();
    let whole = Bounds {
        limit: 100,
        resident: u64::MAX,
    };
    region.learn_runtime_bytes(0, 60);
    region.learn_runtime_bytes(0, 50);

    let (context, rest) = region.reserve_loading(0, 10, whole).unwrap().split(10);
    assert_eq!(rest.bytes(), 50);
    region.confirm(context, Kind::Context);
    region.refund(rest);
    assert_eq!(region.used(0), 60);
    assert_eq!(region.reserve(0, 41, 100).unwrap_err().why, Why::Full);
    region.refund(region.reserve(0, 40, 100).unwrap());

    region.charge(0, 20, Kind::Context);
    assert_eq!(region.used(0), 60);
    region.loaded(0);
    assert_eq!(region.used(0), 30);

    region.loading(0);
    assert_eq!(region.used(0), 60);
    let since = offset_of!(RegionLayout, slots)
        + region.own_slot().unwrap().slot * size_of::<Slot>()
        + offset_of!(Slot, devices)
        + offset_of!(DeviceUse, loading_since_ns);
    let file = std::fs::File::options()
        .write(true)
        .open(place.path())
        .unwrap();
    // The machine has been up for longer than this.
    file.write_all_at(&1_u64.to_ne_bytes(), since as u64)
        .unwrap();
    assert_eq!(region.used(0), 30);
    region.reserve(0, 70, 100).unwrap();
}
