use loom::sync::Arc;
use loom::thread;

use super::model::{compute_use, region_device};
use super::*;

const START_NS: u64 = 1_000_000_000;

struct Two {
    device: RegionDevice,
    own: [ComputeUse; 2],
}

impl Two {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            device: region_device(),
            own: [compute_use(), compute_use()],
        })
    }

    fn packed(&self, index: usize) -> Compute<'_> {
        Compute {
            device: &self.device,
            own: &self.own[index],
            packed: index as u64 + 1,
        }
    }
}

#[test]
fn two_processes_never_earn_the_same_time_twice() {
    loom::model(|| {
        let two = Two::new();
        two.device.credit_at_ns.store(START_NS, Ordering::Relaxed);
        let other = {
            let two = Arc::clone(&two);
            thread::spawn(move || refill(&two.device, START_NS + 2_000_000, 500))
        };
        refill(&two.device, START_NS + 1_000_000, 500);
        other.join().unwrap();
        refill(&two.device, START_NS + 2_000_000, 500);

        assert_eq!(two.packed(0).credit_ns(), 1_000_000);
    });
}

#[test]
fn two_processes_together_go_into_debt_once() {
    loom::model(|| {
        let two = Two::new();
        two.device.credit_at_ns.store(START_NS, Ordering::Relaxed);
        two.device.credit_ns.store(1, Ordering::Relaxed);
        let other = {
            let two = Arc::clone(&two);
            thread::spawn(move || two.packed(1).lease(1_000_000, START_NS, 500).is_ok())
        };
        let mine = two.packed(0).lease(1_000_000, START_NS, 500).is_ok();
        let others = other.join().unwrap();

        assert!(mine != others, "one of the two is let in");
        assert_eq!(two.packed(0).credit_ns(), 1 - 1_000_000);
    });
}

#[test]
fn one_of_two_has_the_unknown_launch() {
    loom::model(|| {
        let two = Two::new();
        let other = {
            let two = Arc::clone(&two);
            thread::spawn(move || two.packed(1).begin_unknown(START_NS))
        };
        let mine = two.packed(0).begin_unknown(START_NS);
        let others = other.join().unwrap();

        assert!(mine != others);
    });
}
