//! The time that accounting adds to one allocation and its free.
#![allow(missing_docs, reason = "criterion's macros make items without docs")]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use vgpu_abi::limits::{DeviceLimit, Limits, LimitsFile, LimitsMap};
use vgpu_abi::region::{Kind, NewDevice, Region};

fn calls(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("region");
    Region::create(&path, &[NewDevice::default()], 0o600).expect("a region");
    let region = Region::open(&path).expect("a region");
    region.join().expect("a slot");

    criterion.bench_function("reserve+confirm+release", |bencher| {
        bencher.iter(|| {
            let charge = region.reserve(0, black_box(4096), 1 << 30).expect("room");
            region.confirm(charge, Kind::Buffer);
            region.release(0, black_box(4096), Kind::Buffer);
        });
    });
    criterion.bench_function("reserve+refund", |bencher| {
        bencher.iter(|| {
            let charge = region.reserve(0, black_box(4096), 1 << 30).expect("room");
            region.refund(charge);
        });
    });
    criterion.bench_function("used", |bencher| bencher.iter(|| region.used(black_box(0))));
    criterion.bench_function("count_hooks", |bencher| {
        bencher.iter(|| region.count_hooks(black_box(3), 1));
    });
    region.charge(0, 1 << 30, Kind::Buffer);
    criterion.bench_function("reserve refused", |bencher| {
        bencher.iter(|| {
            region
                .reserve(0, black_box(4096), 1 << 30)
                .expect_err("no room")
        });
    });
    criterion.bench_function("record_oom", |bencher| {
        let refusal = region.reserve(0, 4096, 1 << 30).expect_err("no room");
        bencher.iter(|| region.record_oom("cuMemAlloc_v2", 0, black_box(&refusal), 1));
    });

    let limits = dir.path().join("limits");
    let devices = vec![DeviceLimit::default(); 2];
    LimitsFile::create(
        &limits,
        &Limits {
            devices,
            ..Limits::default()
        },
    )
    .expect("limits");
    let limits = LimitsMap::open(&limits).expect("limits");
    criterion.bench_function("limits generation", |bencher| {
        bencher.iter(|| limits.generation())
    });
    criterion.bench_function("limits load", |bencher| bencher.iter(|| limits.load()));
    criterion.bench_function("host snapshot", |bencher| {
        bencher.iter(|| vgpu_abi::host::snapshot(&path).expect("a snapshot"));
    });
}

criterion_group!(benches, calls);
criterion_main!(benches);
