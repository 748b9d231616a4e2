//! `vgpu bench accuracy`: that it measures and says what it should. What it finds is the machine's
//! affair here; `tests/compute` asserts shares, on a clock that no machine disturbs.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use common::Machine;

#[test]
fn each_case_has_a_row_with_its_figures_and_its_share_over_time() {
    let machine = Machine::new();
    let picture = machine.path("accuracy.svg");
    let words = [
        "bench",
        "accuracy",
        "--workload",
        "small,processes,pairs",
        "--caps",
        "50",
        "--time",
        "400ms",
        "--json",
        "--svg",
        picture.to_str().unwrap(),
    ];

    let ended = machine.run(&words);

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let results: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&results["version"], &results["simulated"]),
        (&1.into(), &true.into())
    );
    let rows = results["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["workload"].as_str().unwrap(),
                row["asked"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            ("kernels of 20 µs", 50),
            ("1 ms in four processes", 50),
            ("two containers, 10/90", 10),
            ("two containers, 10/90", 90),
            ("two containers, 30/70", 30),
            ("two containers, 30/70", 70),
            ("two containers, 50/50", 50),
            ("two containers, 50/50", 50),
        ]
    );
    for row in rows {
        let mean = row["mean"].as_f64().unwrap();
        assert!(mean > 0.0 && mean <= 101.0, "{row}");
        for figure in ["worst_100ms", "worst_window", "mae", "overshoot"] {
            assert!(row[figure].is_f64(), "{figure}: {row}");
        }
        assert!(!row["shares"].as_array().unwrap().is_empty());
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("two containers, 30/70"));
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn a_change_says_when_it_was_reached_and_a_sparse_program_how_much_slower_it_was() {
    let machine = Machine::new();
    let lines = |workload: &str, time: &str| {
        let words = ["bench", "accuracy", "--caps", "90", "--workload", workload];
        let ended = machine.run(&[&words[..], &["--time", time]].concat());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.starts_with("workload "), "{}", ended.out);
        ended.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };

    let change = lines("change", "600ms");
    let sparse = lines("sparse", "100ms");

    let count = |name: &str| change.iter().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (count("1 ms, cap changed"), count("graphs, cap changed")),
        (3, 3)
    );
    assert!(
        sparse
            .iter()
            .any(|line| line.starts_with("20 µs and 50 ms of pause") && line.ends_with('%'))
    );
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let machine = Machine::new();
    for (words, says) in [
        (["--caps", "0"], "0 is not in 1..=100"),
        (["--caps", "101"], "101 is not in 1..=100"),
        (["--workload", "huge"], "possible values"),
    ] {
        let ended = machine.run(&[&["bench", "accuracy"][..], &words].concat());

        assert_eq!(ended.code, Some(2));
        assert!(ended.err.contains(says), "{}", ended.err);
    }
}
