//! One allocation and its free while 1, 2, 4 and 8 processes do the same: how long each took, at the
//! median and in the tail. Prints a table; fails at nothing.
#![allow(clippy::print_stdout, reason = "a bench prints its results")]

use std::os::unix::fs::FileExt;
use std::time::Instant;

use vgpu_abi::region::{Kind, NewDevice, Region};

const CALLS: usize = 200_000;

fn main() {
    println!("processes  p50 ns  p99 ns  p99.9 ns  max ns");
    for processes in [1, 2, 4, 8] {
        let mut all = measure(processes);
        all.sort_unstable();
        let at = |share: usize| all.get(all.len() * share / 1000).copied().unwrap_or(0);
        let most = all.last().copied().unwrap_or(0);
        println!(
            "{processes:9}  {:6}  {:6}  {:8}  {most:6}",
            at(500),
            at(990),
            at(999)
        );
    }
}

fn measure(processes: usize) -> Vec<u32> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("region");
    Region::create(&path, &[NewDevice::default()], 0o600).expect("a region");
    let region = Region::open(&path).expect("a region");
    let times = std::fs::File::create_new(dir.path().join("times")).expect("a file");
    let children: Vec<_> = (0..processes)
        .map(|index| {
            // SAFETY: this program has one thread; the child measures and leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let bytes: Vec<u8> = calls(&region)
                    .iter()
                    .flat_map(|ns| ns.to_ne_bytes())
                    .collect();
                let written = times.write_all_at(&bytes, (index * bytes.len()) as u64);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(written.is_err())) };
            }
            pid
        })
        .collect();
    for pid in children {
        let mut status = 0;
        // SAFETY: waits for a child of ours, and writes its status to an integer.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0, "a child failed");
    }
    let bytes = std::fs::read(dir.path().join("times")).expect("what the children wrote");
    let number = |chunk: &[u8]| {
        chunk
            .first_chunk()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    bytes.chunks(4).map(number).collect()
}

fn calls(region: &Region) -> Vec<u32> {
    region.join().expect("a slot");
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin = Instant::now();
        let charge = region.reserve(0, 4096, 1 << 30).expect("room");
        region.confirm(charge, Kind::Buffer);
        region.release(0, 4096, Kind::Buffer);
        times.push(u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    times
}
