use super::*;

fn device(index: u32) -> ObservedDevice {
    ObservedDevice {
        index,
        uuid: format!("GPU-{index}"),
        model: "A100-80GB".to_owned(),
        memory_bytes: 80 << 30,
        promised_bytes: 80 << 30,
        gflops: [312_000, 19_500],
        score: 100,
        ..ObservedDevice::default()
    }
}

fn observed(devices: Vec<ObservedDevice>) -> Observed {
    Observed {
        node: "n1".to_owned(),
        labels: BTreeMap::new(),
        vendor: Vendor::Nvidia,
        devices,
        ports: Vec::new(),
        cordoned: false,
        problems: Vec::new(),
        registered: false,
    }
}

fn said(status: &ComputeNodeStatus, kind: &str) -> (String, String, String) {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|it| it.kind == kind).unwrap();
    let since = found.last_transition_time.clone().unwrap();
    (found.status.clone(), found.reason.clone(), since)
}

#[test]
fn amounts_are_written_as_the_document_writes_them() {
    for (amount, text) in [
        (0, "0"),
        (80 << 30, "80Gi"),
        (24_564 << 20, "24564Mi"),
        ((1 << 30) + 1, "1073741825"),
    ] {
        assert_eq!(bytes(amount).0, text);
    }
    assert_eq!(tflops(312_000).0, "312");
    assert_eq!(tflops(19_500).0, "19.5");
    assert_eq!(tflops(1).0, "0.001");
    assert_eq!(bandwidth(600_000).unwrap(), "600GB/s");
    assert_eq!(bandwidth(31_500).unwrap(), "31.5GB/s");
    assert_eq!(bandwidth(0), None);
}

#[test]
fn a_bus_id_is_written_as_the_kernel_writes_it() {
    for (written, expected) in [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("0000:17:00.0", "0000:17:00.0"),
        ("00010000:01:00.0", "00010000:01:00.0"),
        ("", ""),
        ("65:00.0", "65:00.0"),
    ] {
        assert_eq!(bus_id(written), expected, "{written}");
    }
}

#[test]
fn sums_of_a_thousand_devices_do_not_overflow() {
    let mut huge = device(0);
    huge.memory_bytes = u64::MAX;
    huge.allocated_bytes = u64::MAX;
    huge.gflops = [u64::MAX, u64::MAX];
    let all = observed(vec![huge.clone(), ObservedDevice { index: 1, ..huge }]);

    assert_eq!(spec(&all).capacity.vram.0, u64::MAX.to_string());
    status(&all, None, "2026-01-21T10:00:00Z");
}

#[test]
fn devices_that_do_not_all_reach_each_other_are_two_groups() {
    let nvlink = |peer| ObservedLink {
        kind: LinkType::Nvlink,
        peer,
        count: 4,
        mb_s: 200_000,
        version: (3, 0),
    };
    // Links 0-1, 1-2 and 2-3 form a chain, not a clique.
    let mut devices: Vec<ObservedDevice> = (0..4).map(device).collect();
    devices[0].links = vec![nvlink(1)];
    devices[1].links = vec![nvlink(0), nvlink(2)];
    devices[2].links = vec![nvlink(1), nvlink(3)];
    devices[3].links = vec![nvlink(2)];
    let drawn = topology(&observed(devices));

    let groups: Vec<_> = drawn.groups.into_iter().map(|it| it.devices).collect();
    assert_eq!(groups, [["0", "1"], ["2", "3"]]);
    let ends: Vec<_> = drawn
        .links
        .iter()
        .map(|it| format!("{}-{}", it.from, it.to))
        .collect();
    assert_eq!(ends, ["0-1", "1-2", "2-3"]);
}

#[test]
fn several_vendors_of_a_node_have_an_object_each() {
    let first = Vendor::Nvidia;
    assert_eq!(name("n1", Vendor::Nvidia, first), "n1");
    assert_eq!(name("n1", Vendor::Hygon, first), "n1-hygon");
    assert_eq!(name("n1", Vendor::Hygon, Vendor::Hygon), "n1");
}

/// A small generator, so that a failure names its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Ten thousand steps of health, cordons and silence: a condition's time changes exactly when its status does, and
/// the phase agrees with the conditions.
#[test]
fn conditions_and_phase_agree_in_every_history() {
    for seed in [3_u64, 1_000_003, 77_777_777, 4_242_424_242] {
        let mut dice = Dice(seed);
        let mut node = observed((0..3).map(device).collect());
        let mut before: Option<ComputeNodeStatus> = None;
        for second in 0..2_500_u32 {
            let index = usize::try_from(dice.roll(3)).unwrap();
            match dice.roll(6) {
                0 => node.cordoned = !node.cordoned,
                1 => node.devices[index].sick = (dice.roll(2) == 0).then(|| "lost".to_owned()),
                2 => node.devices[index].cordoned = dice.roll(2) == 0,
                3 => node.devices[index].score = u8::try_from(dice.roll(101)).unwrap(),
                4 => node.devices[index].allocated_bytes = dice.roll(80 << 30),
                _ => {}
            }
            let now = format!("t{second}");
            let gone = before.is_some() && dice.roll(5) == 0;
            let after = match &before {
                Some(before) if gone => disconnected(before, 120, &now),
                before => status(&node, before.as_ref(), &now),
            };

            let what = format!("seed {seed}, second {second}: {node:?} {after:?}");
            assert_eq!(after.conditions.len(), 4, "{what}");
            for kind in ["Ready", "HardwareHealthy", "AgentConnected", "Schedulable"] {
                let (holds, reason, since) = said(&after, kind);
                assert!(!reason.is_empty(), "{what}");
                match before.as_ref().map(|before| said(before, kind)) {
                    Some((held, _, was)) if held == holds => assert_eq!(since, was, "{what}"),
                    _ => assert_eq!(since, now, "{what}"),
                }
            }
            let holds = |kind: &str| said(&after, kind).0 == "True";
            let well = |it: &&ObservedDevice| it.sick.is_none() && it.score >= HEALTHY;
            let phase = match (holds("Ready"), holds("Schedulable")) {
                (false, _) => Phase::NotReady,
                (true, _) if node.cordoned => Phase::Draining,
                (true, _) => Phase::Ready,
            };
            assert_eq!(after.phase, Some(phase), "{what}");
            assert_eq!(is_disconnected(&after), gone, "{what}");
            if !gone {
                let healthy = node.devices.iter().filter(well).count();
                assert_eq!(holds("Ready"), healthy > 0, "{what}");
                assert_eq!(holds("HardwareHealthy"), healthy == 3, "{what}");
                let open = node.devices.iter().filter(well).any(|it| !it.cordoned);
                assert_eq!(holds("Schedulable"), open && !node.cordoned, "{what}");
                assert_eq!(after.last_heartbeat.as_deref(), Some(&*now), "{what}");
                // Reporting the same again changes only the heartbeat.
                let again = status(&node, Some(&after), "later");
                assert!(same_but_heartbeat(&after, &again), "{what}");
            }
            before = Some(after);
        }
    }
}
