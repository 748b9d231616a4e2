use super::*;
use crate::health::xid::{Class, TABLE};

/// A judge with a clock of the test's, and one GPU that was started and found well.
struct World {
    judge: Judge,
    now: Instant,
}

const GPU: &str = "GPU-1";

impl World {
    fn new(disable: &str, enable: &str) -> Self {
        let now = Instant::now();
        let judge = Judge::new(Checks::parse(disable, enable), Patience::default(), now);
        let mut world = Self { judge, now };
        world.started();
        world
    }

    fn take(&mut self, report: Report) -> Vec<News> {
        self.judge.take(report, self.now, SystemTime::UNIX_EPOCH)
    }

    fn started(&mut self) {
        let known = GpuIdentity {
            uuid: GPU.to_owned(),
            index: 0,
            model: "T".to_owned(),
        };
        self.take(Report::Starting);
        self.take(Report::Started(vec![known]));
        self.probed(Ok(Vitals::default()));
    }

    fn probed(&mut self, found: Result<Vitals, Fault>) -> Vec<News> {
        let uuid = GPU.to_owned();
        self.take(Report::Probed { uuid, found })
    }

    fn xid(&mut self, number: u64) -> Vec<News> {
        let uuid = GPU.to_owned();
        self.take(Report::Xid { uuid, number })
    }

    /// Time goes by with good probes each five seconds.
    fn well_for(&mut self, time: Duration) -> Vec<News> {
        let mut news = Vec::new();
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_secs(5);
            news.extend(self.probed(Ok(Vitals::default())));
        }
        news
    }

    fn sick(&self) -> Option<Sick> {
        self.judge.health().get(GPU).cloned()
    }
}

const QUIET: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn each_xid_has_its_verdict_text_and_recovery() {
    for xid in TABLE.iter().copied().chain([xid::of(777)]) {
        let number = xid.number;
        let mut world = World::new("", "");

        let news = world.xid(number);

        let said = matches!(news.first(), Some(News::Xid { xid: said, sick, .. })
            if said.number == number && *sick == (xid.until != Until::Never));
        assert!(said, "{number}: {news:?}");
        assert_eq!(
            world.sick().is_some(),
            xid.until != Until::Never,
            "{number}"
        );
        if xid.class == Class::Application {
            assert_eq!(world.sick(), None, "{number}");
        }
        if let Some(sick) = world.sick() {
            assert!(sick.reason.contains(xid.meaning), "{number}: {sick:?}");
            assert_eq!(sick.recovers, xid.until != Until::Reset, "{number}");
        }
        world.well_for(QUIET + Duration::from_secs(10));
        let after_quiet = world.sick().is_some();
        world.well_for(LONG);
        let after_long = world.sick().is_some();
        let expected = match xid.until {
            Until::Never | Until::Quiet => (false, false),
            Until::LongQuiet => (true, false),
            Until::Reset => (true, true),
        };
        assert_eq!((after_quiet, after_long), expected, "{number}");
        // A reset: the GPU goes and comes back.
        world.probed(Err(Fault::Lost));
        assert!(world.sick().is_some(), "{number}");
        world.probed(Ok(Vitals::default()));
        assert_eq!(world.sick(), None, "{number} after a reset");
        assert_eq!(world.judge.figures().xids[&(GPU.to_owned(), number)], 1);
    }
}

#[test]
fn recurring_xid_waits_twice_as_long() {
    let mut world = World::new("", "");
    world.xid(119);
    world.well_for(QUIET + Duration::from_secs(5));
    assert_eq!(world.sick(), None);

    world.xid(119);
    world.well_for(QUIET + Duration::from_secs(5));
    assert!(world.sick().is_some());
    let news = world.well_for(QUIET);

    assert_eq!(world.sick(), None);
    assert!(matches!(news.as_slice(), [News::Well { was, .. }] if was.starts_with("XID 119")));
    assert_eq!(world.judge.figures().gpus[0].recoveries, 2);
}

#[test]
fn recovery_needs_a_good_probe() {
    let mut world = World::new("", "");
    world.xid(119);
    for _ in 0..100 {
        world.now += Duration::from_secs(10);
        world.take(Report::Alive);
    }
    assert!(world.sick().is_some());
}

#[test]
fn pending_reset_warns_and_blocks_recovery_from_memory_errors() {
    let mut world = World::new("", "");
    let waits = || Vitals {
        remap_pending: true,
        ..Vitals::default()
    };
    let news = world.probed(Ok(waits()));
    assert!(
        matches!(news.as_slice(), [News::Warning { .. }]),
        "{news:?}"
    );
    assert_eq!(world.probed(Ok(waits())), [], "said once");
    assert_eq!(world.sick(), None, "a warning takes no GPU out");

    world.xid(48);
    for _ in 0..200 {
        world.now += Duration::from_secs(10);
        world.probed(Ok(waits()));
    }
    assert!(world.sick().is_some());
    let failed = Vitals {
        remap_failed: true,
        ..Vitals::default()
    };
    world.probed(Ok(failed));
    assert!(!world.sick().unwrap().recovers);
    world.well_for(LONG);
    assert_eq!(world.sick(), None);
}

#[test]
fn silent_driver_takes_all_gpus_out_until_it_answers() {
    let mut world = World::new("", "");
    world.now += Duration::from_secs(9);
    assert_eq!(world.judge.tick(world.now, SystemTime::UNIX_EPOCH), []);
    world.now += Duration::from_secs(2);

    let news = world.judge.tick(world.now, SystemTime::UNIX_EPOCH);

    assert!(matches!(news.as_slice(), [News::DriverDown(_)]), "{news:?}");
    assert!(world.sick().unwrap().reason.contains("does not answer"));
    assert!(world.sick().unwrap().recovers);
    world.now += Duration::from_secs(600);
    assert_eq!(
        world.judge.tick(world.now, SystemTime::UNIX_EPOCH),
        [],
        "said once"
    );
    assert_eq!(world.take(Report::Alive), [News::DriverUp]);
    assert_eq!(world.sick(), None);
}

#[test]
fn starting_driver_gets_a_longer_timeout() {
    let mut world = World::new("", "");
    world.take(Report::Down("replaced".to_owned()));
    assert_eq!(world.sick().unwrap().reason, "replaced");
    world.take(Report::Starting);
    world.now += Duration::from_secs(30);
    world.judge.tick(world.now, SystemTime::UNIX_EPOCH);
    assert_eq!(world.sick().unwrap().reason, "replaced");
    world.started();
    assert_eq!(world.sick(), None);
}

#[test]
fn inventory_only_gpus_are_out_while_the_driver_is_silent() {
    let now = Instant::now();
    let mut judge = Judge::new(Checks::default(), Patience::default(), now);
    judge.know([GpuIdentity {
        uuid: "GPU-9".to_owned(),
        index: 9,
        model: String::new(),
    }]);
    judge.take(Report::Down("gone".to_owned()), now, SystemTime::UNIX_EPOCH);
    assert_eq!(judge.health()["GPU-9"].reason, "gone");
}

#[test]
fn disabled_checks_still_count_xids() {
    let mut world = World::new("all", "");
    world.xid(79);
    world.probed(Err(Fault::Lost));
    world.take(Report::Down("gone".to_owned()));
    assert_eq!(world.sick(), None);
    assert_eq!(world.judge.figures().xids.len(), 1);
}
