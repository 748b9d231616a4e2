//! The boards that tests of shares run on: drivers that divide a GPU's time differently, and tell differently how it was
//! used. A table of values, and the macro that makes one test for each of them. No test asks which board it is on.

use cuda_sim::Config;

/// A simulated driver of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Board {
    /// Its differences from the other boards, joined by `-`.
    pub(crate) name: &'static str,
    /// Lines for its script.
    script: &'static str,
    /// The parts that its NVML lacks.
    nvml: &'static str,
    /// The CUDA version that the driver reports.
    driver_version: u32,
    /// Whether an MPS server runs the kernels of all processes side by side.
    mps: bool,
    /// Whether the driver keeps a long slice whose process has nothing more to run: where containers change over, the time
    /// until that slice ends is lost to all. The arbiter needs some seconds to find a period that is long enough.
    keeps_long_slices: bool,
}

/// A simulated GPU without settings.
pub(crate) const PLAIN: Board = Board {
    name: "slices-2ms-round-robin",
    script: "",
    nvml: "",
    driver_version: 12_040,
    mps: false,
    keeps_long_slices: false,
};

/// The same with a driver of CUDA 13.
pub(crate) const NEWER: Board = Board {
    driver_version: 13_010,
    ..PLAIN
};

/// Every board.
pub(crate) const BOARDS: &[Board] = &[
    PLAIN,
    Board {
        name: "slices-2ms-round-robin-late-figures",
        script: "slice 2ms\nsample 170ms\nnvml lag 170ms\n",
        ..PLAIN
    },
    Board {
        name: "slices-500us-least-run-no-figures",
        script: "slice 500us\nslice order least-run\n",
        nvml: "no-figures",
        ..PLAIN
    },
    Board {
        name: "slices-6ms-round-robin-kept-no-samples",
        script: "slice 6ms\nslice empty kept\n",
        nvml: "no-samples",
        keeps_long_slices: true,
        ..PLAIN
    },
    Board {
        name: "slices-1ms-round-robin-switch-50us-wrong-figures",
        script: "slice 1ms\nslice switch 50us\nsample 100ms\nnvml credit next\n",
        ..PLAIN
    },
    Board {
        name: "slices-4ms-least-run-switch-200us-rounded-figures",
        script: "slice 4ms\nslice order least-run\nslice switch 200us\nsample 1s\nnvml round up\n",
        ..PLAIN
    },
    Board {
        name: "slices-1ms-least-run-kept-wrong-late-figures",
        script: "slice 1ms\nslice order least-run\nslice empty kept\nslice switch 20us\n\
                 sample 200ms\nnvml lag 300ms\nnvml credit next\nnvml round nearest\n",
        ..PLAIN
    },
    Board {
        name: "side-by-side-under-mps",
        mps: true,
        ..PLAIN
    },
];

impl Board {
    /// The board of a test's name, with `_`.
    pub(crate) fn named(name: &str) -> &'static Board {
        let name = name.replace('_', "-");
        let found = BOARDS.iter().find(|board| board.name == name);
        found.unwrap_or_else(|| panic!("there is no board {name}"))
    }

    /// The configuration that makes the board, with more lines for its script.
    pub(crate) fn config(&self, script: &str) -> Config {
        Config {
            script: format!("{}{script}", self.script),
            nvml: self.nvml.to_owned(),
            driver_version: self.driver_version,
            mps: self.mps,
            ..Config::default()
        }
    }

    /// When the arbiter has found the period that suits the board, milliseconds after the start.
    pub(crate) fn settled_ms(&self) -> u64 {
        if self.keeps_long_slices { 3_500 } else { 0 }
    }

    /// The allowed error of a share before that, points.
    pub(crate) fn early_points(&self) -> f64 {
        if self.keeps_long_slices {
            EARLY_POINTS
        } else {
            POINTS
        }
    }

    /// The least part of what a container is owed that it must get in its first burst.
    pub(crate) fn early_part(&self) -> f64 {
        if self.keeps_long_slices { 0.7 } else { 0.9 }
    }

    /// In windows of how many milliseconds each container has its share: a whole number of periods.
    pub(crate) fn window_ms(&self) -> u64 {
        if self.keeps_long_slices { 500 } else { 200 }
    }

    /// Whether one process's kernels run at a moment.
    pub(crate) fn has_slices(&self) -> bool {
        !self.mps
    }
}

/// The allowed error of a share, points.
pub(crate) const POINTS: f64 = 1.5;

/// The allowed error on the board that keeps long slices, before the arbiter has found the period that suits it, points.
const EARLY_POINTS: f64 = 4.0;

/// The least part of what a container is owed that it must get.
pub(crate) const LEAST_PART: f64 = 0.9;

/// The allowed error of a share in a window ([`Board::window_ms`]), points.
pub(crate) const WINDOW_POINTS: f64 = 3.0;

/// The shares that containers with caps must get from a GPU that gives `offered` percent to programs without limits:
/// their caps, or parts of `offered` in proportion to their caps if it is less than their sum.
pub(crate) fn owed(caps: &[u32], offered: f64) -> Vec<f64> {
    let asked: f64 = caps.iter().map(|cap| f64::from(*cap)).sum();
    let part = (offered / asked).min(1.0);
    caps.iter().map(|cap| f64::from(*cap) * part).collect()
}

/// The same, where each program would use `alone` percent of the GPU by itself: a container is not owed the time for
/// which its program does not ask.
pub(crate) fn owed_to_each(caps: &[u32], offered: f64, alone: &[f64]) -> Vec<f64> {
    let each = owed(caps, offered).into_iter().zip(caps).zip(alone);
    each.map(|((owed, cap), alone)| owed.min(f64::from(*cap) * alone / 100.0))
        .collect()
}

/// How many points a share is off: below what the container is owed, or above its cap.
pub(crate) fn off(got: f64, owed: f64, cap: u32) -> f64 {
    (owed - got).max(got - f64::from(cap)).max(0.0)
}

/// Calls a macro with the name of every board, with `_`, after what it was given.
macro_rules! with_board_names {
    ($macro:ident! { $($before:tt)* }) => {
        $macro! { $($before)*
            slices_2ms_round_robin
            slices_2ms_round_robin_late_figures
            slices_500us_least_run_no_figures
            slices_6ms_round_robin_kept_no_samples
            slices_1ms_round_robin_switch_50us_wrong_figures
            slices_4ms_least_run_switch_200us_rounded_figures
            slices_1ms_least_run_kept_wrong_late_figures
            side_by_side_under_mps
        }
    };
}

/// Makes of a function of a board a module of its name, with a test for each board.
macro_rules! on_every_board {
    ($($(#[$meta:meta])* fn $name:ident($board:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "some bodies name nothing of their file")]
            use super::*;

            #[allow(dead_code, reason = "some bodies have no case that may be far off")]
            const TEST: &str = stringify!($name);

            #[track_caller]
            fn holds($board: &$crate::boards::Board) $body

            with_board_names! { tests_of_boards! {} }
        }
    )*};
}

macro_rules! tests_of_boards {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            holds($crate::boards::Board::named(stringify!($name)));
        }
    )*};
}

#[test]
fn every_board_has_its_tests() {
    macro_rules! names {
        ($($name:ident)*) => { [$(stringify!($name)),*] };
    }
    let tested = with_board_names!(names! {});
    let boards: Vec<_> = BOARDS
        .iter()
        .map(|board| board.name.replace('-', "_"))
        .collect();
    assert_eq!(tested.to_vec(), boards);
}

#[test]
fn a_gpu_that_gives_less_is_divided_by_the_caps() {
    assert_eq!(owed(&[30, 70], 100.0), [30.0, 70.0]);
    assert_eq!(owed(&[30, 70], 90.0), [27.0, 63.0]);
    // Where less is asked than there is, and where kernels run side by side.
    assert_eq!(owed(&[10, 50], 90.0), [10.0, 50.0]);
    assert_eq!(owed(&[30, 70], 200.0), [30.0, 70.0]);
}

#[test]
fn a_program_is_owed_no_more_of_its_cap_than_it_would_use_of_a_gpu() {
    assert_eq!(owed_to_each(&[30, 70], 100.0, &[80.0, 100.0]), [24.0, 70.0]);
    assert_eq!(owed_to_each(&[30, 70], 90.0, &[95.0, 80.0]), [27.0, 56.0]);
}

#[test]
fn a_share_is_off_below_what_is_owed_and_above_the_cap() {
    assert_eq!(off(28.0, 27.0, 30), 0.0);
    assert_eq!(off(25.0, 27.0, 30), 2.0);
    assert_eq!(off(34.0, 27.0, 30), 4.0);
}

#[test]
fn only_the_board_that_keeps_long_slices_has_an_allowance() {
    let allowed = BOARDS.iter().filter(|board| board.keeps_long_slices);
    let names: Vec<_> = allowed.map(|board| board.name).collect();
    assert_eq!(names, ["slices-6ms-round-robin-kept-no-samples"]);
}
