//! The manners of a guest: once the region is open, nothing allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vgpu_abi::limits::{DeviceLimit, Limits, LimitsFile, LimitsMap};
use vgpu_abi::region::{Kind, NewDevice, Region, SharedKey};
use vgpu_abi::targets::{Target, TargetsFile, TargetsMap};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn after_open_nothing_allocates() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    Region::create(&at("region"), &[NewDevice::default()], 0o600).unwrap();
    let region = Region::open(&at("region")).unwrap();
    let devices = vec![DeviceLimit::default(); 2];
    LimitsFile::create(
        &at("limits"),
        &Limits {
            devices,
            ..Limits::default()
        },
    )
    .unwrap();
    let limits = LimitsMap::open(&at("limits")).unwrap();
    let mut targets = TargetsFile::create(&at("targets")).unwrap();
    targets.write(&[(0, Target::default())], 1).unwrap();
    let targets = TargetsMap::open(&at("targets")).unwrap();
    // A place that a test may kill at looks at the environment, once.
    region.join().unwrap();
    region.leave();
    let before = ALLOCATIONS.with(Cell::get);

    region.join().unwrap();
    let charge = region.reserve(0, 10, 100).unwrap();
    region.confirm(charge, Kind::Buffer);
    let charge = region.reserve(0, 10, 100).unwrap();
    region.refund(charge);
    let refusal = region.reserve(0, 100, 100).unwrap_err();
    region.record_oom("cuMemAlloc_v2", 0, &refusal, 1);
    region.share(SharedKey([1, 1]), 0, 5, Kind::Buffer).unwrap();
    region.hold(SharedKey([1, 1])).unwrap();
    region.unhold(SharedKey([1, 1])).unwrap();
    region.unhold(SharedKey([1, 1])).unwrap();
    region.adjust(0, Kind::Context, 0, 7);
    region.release(0, 5, Kind::Buffer);
    region.count_hooks(0, 1);
    region.reap();
    region.tick(1);
    let seen = (
        region.used(0),
        region.holders(0),
        region.processes().count(),
    );
    let limits = limits.load().unwrap();
    let target = targets.target(0, 0);
    region.leave();

    let after = ALLOCATIONS.with(Cell::get);
    assert_eq!(after - before, 0);
    assert_eq!((seen.0, seen.2, limits.devices().len()), (7, 1, 2));
    assert_eq!(target, Some(Target::default()));
}
