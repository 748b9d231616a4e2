//! One container under a cap: how near its share is to what it asked for.

use crate::lab::{Asks, Curve, Lab, US};

const CAPS: [u32; 6] = [5, 10, 25, 50, 75, 90];

/// Runs a pattern under a cap for so long, alone.
fn under(cap: u32, words: &str, ms: u64) -> Curve {
    let lab = Lab::new();
    let container = lab.container("alone", Asks::cap(cap));
    let program = container.start(&format!("{words} for={ms}"));

    let curve = lab.watch(ms, &[&[&program]], |_| {}).remove(0);

    assert!(lab.was_exact());
    program.end();
    curve
}

/// Mean within a point, and each window within five.
#[track_caller]
fn keeps(caps: &[u32], words: &str, longest_us: u64, ms: u64) {
    for &cap in caps {
        let curve = under(cap, words, ms);
        let asked = f64::from(cap);
        let mean = curve.share(0, ms);
        let (low, high) = curve.windows(0, ms, (20 * longest_us / 1_000).max(100));
        println!("cap {cap}, {words}: mean {mean:.2}, windows {low:.1} to {high:.1}");
        assert!(
            (mean - asked).abs() <= 1.0 && asked - low <= 5.0 && high - asked <= 5.0,
            "cap {cap}, {words}: mean {mean:.2}, windows {low:.1} to {high:.1}: {}",
            curve.shape(ms, 100)
        );
    }
}

#[test]
fn kernels_of_20_us_get_their_cap() {
    keeps(&CAPS, &format!("steady ns={}", 20 * US), 20, 2_000);
}

#[test]
fn kernels_of_250_us_get_their_cap() {
    keeps(&CAPS, &format!("steady ns={}", 250 * US), 250, 3_000);
}
