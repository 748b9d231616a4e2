//! A region that its tenant has written nonsense into, cut, or exchanged: the host reads on, with an
//! error or with numbers that a device can have; and so does the library itself.

use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use vgpu_abi::budget::MOST_BYTES;
use vgpu_abi::file::{FileError, FileKind};
use vgpu_abi::host::{self, Snapshot};
use vgpu_abi::layout::{MAX_DEVICES, MAX_HOLDERS, MAX_OOMS, MAX_SHARED, MAX_SLOTS, RegionLayout};
use vgpu_abi::limits::DeviceUuid;
use vgpu_abi::region::{Kind, NewDevice, Region, SharedKey};

const BYTES: usize = size_of::<RegionLayout>();

fn region(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("region");
    let device = NewDevice {
        uuid: DeviceUuid::new("GPU-0").unwrap(),
        physical_bytes: 1 << 34,
    };
    Region::create(&path, &[device, device], 0o600).unwrap();
    path
}

fn believable(snapshot: &Snapshot) {
    assert!(snapshot.devices.len() <= MAX_DEVICES);
    assert!(snapshot.slots.len() <= MAX_SLOTS);
    assert!(snapshot.shared.len() <= MAX_SHARED);
    assert!(snapshot.ooms.len() <= MAX_OOMS);
    for slot in &snapshot.slots {
        assert!(slot.name.len() <= 16 && slot.name.is_ascii());
        for device in &slot.devices {
            let parts = [
                device.buffer_bytes,
                device.context_bytes,
                device.module_bytes,
            ];
            assert!(device.confirmed_bytes <= MOST_BYTES && device.pending_bytes <= MOST_BYTES);
            assert_eq!(parts.iter().sum::<u64>(), device.confirmed_bytes);
        }
    }
    for object in &snapshot.shared {
        assert!(object.device < MAX_DEVICES && object.bytes <= MOST_BYTES);
        assert!(object.holders.iter().all(|slot| *slot < MAX_SLOTS));
    }
    for oom in &snapshot.ooms {
        assert!(oom.device < MAX_DEVICES && oom.holders.len() <= MAX_HOLDERS);
        assert!(oom.call.chars().all(|c| c == ' ' || c.is_ascii_graphic()));
    }
    for device in &snapshot.devices {
        // An exporter adds the lengths up.
        assert!(device.waits.count() <= 7 << 48);
        assert!(device.waits.by_length.iter().all(|waits| *waits <= 1 << 48));
    }
    for device in 0..MAX_DEVICES {
        assert!(snapshot.used_bytes(device) <= MOST_BYTES * (MAX_SLOTS as u64 + 1));
    }
}

/// Bytes at places: most in the header, where they decide most.
fn noise() -> impl Strategy<Value = Vec<(usize, Vec<u8>)>> {
    let at = prop_oneof![
        3 => 8_usize..512,
        1 => 512_usize..2_560,
        2 => 4096_usize..24_576,
        2 => 24_576_usize..50_000,
        2 => 417_792_usize..430_000,
        1 => 0_usize..BYTES,
    ];
    let bytes = prop_oneof![
        Just(vec![0xff; 8]),
        Just(vec![0xff; 4]),
        proptest::collection::vec(any::<u8>(), 1..300),
    ];
    proptest::collection::vec((at, bytes), 1..12)
}

fn write(path: &Path, noise: &[(usize, Vec<u8>)]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for (at, bytes) in noise {
        let bytes = bytes.get(..bytes.len().min(BYTES - at)).unwrap();
        file.write_all_at(bytes, *at as u64).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_in_a_region_make_the_host_stumble(noise in noise()) {
        let dir = tempfile::tempdir().unwrap();
        let path = region(dir.path());
        write(&path, &noise);

        if let Ok(snapshot) = host::snapshot(&path) {
            believable(&snapshot);
        }
    }

    #[test]
    fn a_file_of_any_length_is_an_error(length in 0_u64..2 * BYTES as u64) {
        prop_assume!(length != BYTES as u64);
        let dir = tempfile::tempdir().unwrap();
        let path = region(dir.path());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();

        let expected = FileError::WrongSize { kind: FileKind::Region, found: length };
        prop_assert_eq!(host::snapshot(&path), Err(expected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_bytes_in_a_region_make_the_library_stumble(before in noise(), during in noise()) {
        let dir = tempfile::tempdir().unwrap();
        let path = region(dir.path());
        write(&path, &before);

        if let Ok(region) = Region::open(&path) {
            for round in 0..2 {
                if let Ok(charge) = region.reserve(0, 1 << 20, 1 << 30) {
                    region.confirm(charge, Kind::Context);
                }
                if let Err(refusal) = region.reserve(1, 1 << 30, 1 << 20) {
                    region.record_oom("cuMemAlloc_v2", 1, &refusal, 1);
                }
                region.reap();
                if region.share(SharedKey([1, round]), 0, 1 << 10, Kind::Buffer).is_ok() {
                    let _held = region.unhold(SharedKey([1, round]));
                }
                region.tick(u64::MAX / 2 + (round << 40));
                region.release(0, 1 << 20, Kind::Context);
                let _seen = (region.holders(0), region.processes().count(), region.device(0));
                write(&path, &during);
            }
        }
    }
}

#[test]
fn region_shortened_while_it_is_read_is_an_error_or_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = region(dir.path());
    let owner = Region::open(&path).unwrap();
    owner.charge(0, 1, Kind::Buffer);
    let done = std::sync::atomic::AtomicBool::new(false);
    // The mapping of a file that is cut must not be touched again.
    std::mem::forget(owner);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            for _ in 0..2_000 {
                file.set_len(5_000).unwrap();
                file.set_len(BYTES as u64).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            match host::snapshot(&path) {
                Ok(snapshot) => believable(&snapshot),
                Err(FileError::WrongSize { .. } | FileError::Truncated) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
fn region_replaced_by_a_link_or_pipe_blocks_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = region(dir.path());
    let aside = dir.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();

    std::os::unix::fs::symlink(&aside, &path).unwrap();
    assert_eq!(host::snapshot(&path), Err(FileError::NotRegular));
    std::fs::remove_file(&path).unwrap();
    std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap();
    assert_eq!(host::snapshot(&path), Err(FileError::NotRegular));
    std::fs::remove_file(&path).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(host::snapshot(&path), Err(FileError::NotRegular));
}
