//! The clock that processes share in lockstep, as programs under the simulated driver see it: through
//! driver calls and the four functions that no real driver has.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Driver, alone, call, ok};
use cuda_api::driver::*;
use cuda_sim::clock::{ClockKind, START_NS};
use cuda_sim::{Board, Config};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry step__300us() { ret; }
.visible .entry step__1ms() { ret; }
\0";

/// The functions that only the simulated driver has.
struct Time<'a>(&'a Driver);

impl Time<'_> {
    fn now(&self) -> u64 {
        let now: extern "C" fn() -> u64 = self.0.find("vgpuSimNow");
        now()
    }

    fn sleep_until(&self, ns: u64) {
        let sleep_until: extern "C" fn(u64) = self.0.find("vgpuSimSleepUntil");
        sleep_until(ns);
    }

    fn leave(&self) {
        let leave: extern "C" fn() = self.0.find("vgpuSimLeave");
        leave();
    }

    fn join(&self) {
        let join: extern "C" fn() = self.0.find("vgpuSimJoin");
        join();
    }
}

fn kernel(driver: &Driver, name: &std::ffi::CStr) -> CuFunction {
    let (mut module, mut function) = (null_mut(), null_mut());
    ok!(
        driver,
        cuModuleLoadData(&raw mut module, PTX.as_ptr().cast())
    );
    ok!(
        driver,
        cuModuleGetFunction(&raw mut function, module, name.as_ptr())
    );
    function
}

fn stream(driver: &Driver) -> CuStream {
    const NON_BLOCKING: u32 = 1;
    let mut stream = null_mut();
    ok!(driver, cuStreamCreate(&raw mut stream, NON_BLOCKING));
    stream
}

fn launch(driver: &Driver, function: CuFunction, stream: CuStream) {
    ok!(
        driver,
        cuLaunchKernel(
            function,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            null_mut(),
            null_mut()
        )
    );
}

/// A program: two threads that launch, wait and sleep, each in a rhythm of its own.
fn program(number: u64) {
    let driver = Driver::load();
    let time = Time(&driver);
    time.join();
    let context = driver.context(0).addr();
    let (short, long) = (
        kernel(&driver, c"step__300us").addr(),
        kernel(&driver, c"step__1ms"),
    );
    let is_late = number == 0 && std::env::var_os("VGPU_TEST_LATE").is_some();
    let has_joined = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            if is_late {
                std::thread::sleep(Duration::from_millis(150));
            }
            time.join();
            has_joined.store(true, Ordering::SeqCst);
            // A thread runs from its joining, beside the one that runs already. From its first wait on they take turns.
            time.sleep_until(time.now() + US);
            let context = std::ptr::with_exposed_provenance_mut(context);
            ok!(driver, cuCtxSetCurrent(context));
            let own = stream(&driver);
            for _ in 0..10 {
                launch(&driver, std::ptr::with_exposed_provenance_mut(short), own);
                time.sleep_until(time.now() + 130 * US + number * 7);
                ok!(driver, cuStreamSynchronize(own));
            }
        });
        // A thread that has called nothing yet is not known to the clock. Waiting for it must not sleep: the clock lets
        // another program go on beside a thread that sleeps for long in something that the clock does not know.
        while !has_joined.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let own = stream(&driver);
        for _ in 0..10 {
            launch(&driver, long, own);
            ok!(driver, cuStreamSynchronize(own));
            time.sleep_until(time.now() + number * 333 * US);
        }
        time.leave();
        other.join().unwrap();
    });
}

/// How long each program was busy, and when the last one ended. `is_late`: the second thread of the first program
/// begins late, as on a busy machine.
fn history(name: &str, order: &[u32], is_late: bool) -> (Vec<u64>, u64) {
    let programs = order.len() as u32;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("board");
    let config = Config {
        clock: ClockKind::Lockstep,
        ..Config::default()
    };
    let exec = Board::create(&path, &config).unwrap().exec().unwrap();
    let part = exec.clock().join_thread();
    exec.clock().expect_threads(1 + programs);
    // Whichever starts first, they go on by their ranks.
    let mut children: Vec<_> = order
        .iter()
        .map(|number| {
            let mut program = crate::common::command(name, &path);
            program
                .env("VGPU_TEST_OTHER", number.to_string())
                .env("VGPU_SIM_RANK", number.to_string());
            if is_late {
                program.env("VGPU_TEST_LATE", "1");
            }
            program.spawn().unwrap()
        })
        .collect();
    drop(part);
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let counts = exec.clock().counts();
    assert_eq!((counts.stalls, counts.sleepers), (0, 0));
    let busy_ns = exec.truth(0).iter().map(|one| one.busy_ns).collect();
    (busy_ns, exec.clock().now())
}

#[test]
fn programs_in_lockstep_have_the_same_history_each_time() {
    const NAME: &str = "programs_in_lockstep_have_the_same_history_each_time";
    if let Ok(number) = std::env::var("VGPU_TEST_OTHER") {
        program(number.parse().unwrap());
        return;
    }
    for orders in [[&[0, 1][..], &[1, 0]], [&[0, 1, 2, 3], &[3, 1, 2, 0]]] {
        let first = history(NAME, orders[0], false);
        assert_eq!(first.0.len(), orders[0].len());
        for order in orders {
            for is_late in [false, true] {
                let again = history(NAME, order, is_late);
                assert_eq!(again, first, "{order:?}, late: {is_late}");
            }
        }
    }
}

const LOCKSTEP: &[(&str, &str)] = &[("VGPU_SIM_CLOCK", "lockstep")];

#[test]
fn time_can_be_told_and_slept_before_the_driver_is_initialised() {
    alone(
        "time_can_be_told_and_slept_before_the_driver_is_initialised",
        LOCKSTEP,
        |driver| {
            let time = Time(driver);
            assert_eq!(time.now(), START_NS);

            time.sleep_until(START_NS + 5 * MS);

            assert_eq!(time.now(), START_NS + 5 * MS);
            let mut device = CuDevice(0);
            let early = call!(driver, cuDeviceGet(&raw mut device, 0));
            assert_eq!(early, CuResult::NOT_INITIALIZED);
            driver.context(0);
            assert_eq!(time.now(), START_NS + 5 * MS);
        },
    );
}

#[test]
fn a_real_clock_is_told_and_slept_by_the_same_functions() {
    alone(
        "a_real_clock_is_told_and_slept_by_the_same_functions",
        &[],
        |driver| {
            let time = Time(driver);
            let now = time.now();
            assert!(now <= cuda_sim::clock::monotonic_ns());

            time.sleep_until(now + MS);

            assert!(cuda_sim::clock::monotonic_ns() >= now + MS);
        },
    );
}

static SEEN_NS: AtomicU64 = AtomicU64::new(0);

/// A host function that takes a millisecond of the board's time.
unsafe extern "C-unwind" fn slow(driver: *mut c_void) {
    // SAFETY: the test below passes its driver, which lives until the stream is done.
    let driver = unsafe { &*driver.cast::<Driver>() };
    let time = Time(driver);
    time.sleep_until(time.now() + MS);
    SEEN_NS.store(time.now(), Ordering::SeqCst);
}

#[test]
fn host_functions_take_their_turn_in_lockstep() {
    alone(
        "host_functions_take_their_turn_in_lockstep",
        LOCKSTEP,
        |driver| {
            driver.context(0);
            let (function, own) = (kernel(driver, c"step__300us"), stream(driver));

            launch(driver, function, own);
            let data = std::ptr::from_ref(driver).cast_mut().cast();
            ok!(driver, cuLaunchHostFunc(own, Some(slow), data));
            launch(driver, function, own);
            ok!(driver, cuStreamSynchronize(own));

            let now = Time(driver).now();
            assert_eq!(SEEN_NS.load(Ordering::SeqCst), START_NS + 300 * US + MS);
            assert_eq!(now, START_NS + 600 * US + MS);
        },
    );
}

#[test]
fn a_wait_for_a_value_ends_at_the_moment_of_the_write() {
    alone(
        "a_wait_for_a_value_ends_at_the_moment_of_the_write",
        LOCKSTEP,
        |driver| {
            driver.context(0);
            let (function, one, two) = (
                kernel(driver, c"step__300us"),
                stream(driver),
                stream(driver),
            );
            let word = driver.alloc(4).unwrap();
            ok!(driver, cuMemsetD32_v2(word, 0, 1));
            let begin = Time(driver).now();

            ok!(driver, cuStreamWaitValue32_v2(two, word, 5, 1));
            launch(driver, function, two);
            launch(driver, function, one);
            ok!(driver, cuStreamWriteValue32_v2(one, word, 5, 0));
            ok!(driver, cuStreamSynchronize(two));

            assert_eq!(Time(driver).now() - begin, 600 * US);
        },
    );
}

#[test]
fn a_program_that_polls_gets_on() {
    alone("a_program_that_polls_gets_on", LOCKSTEP, |driver| {
        driver.context(0);
        let (function, own) = (kernel(driver, c"step__300us"), stream(driver));
        let begin = Time(driver).now();

        launch(driver, function, own);
        while call!(driver, cuStreamQuery(own)) == CuResult::NOT_READY {}

        assert_eq!(Time(driver).now() - begin, 300 * US);
    });
}

#[test]
fn a_call_costs_its_thread_time_of_the_board() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "call cuLaunchKernel 4us").unwrap();
    for clock in ["lockstep", "jump", "virtual"] {
        alone(
            "a_call_costs_its_thread_time_of_the_board",
            &[
                ("VGPU_SIM_CLOCK", clock),
                ("VGPU_SIM_SCRIPT", script.to_str().unwrap()),
            ],
            |driver| {
                driver.context(0);
                let (function, own) = (kernel(driver, c"step__1ms"), stream(driver));
                let begin = Time(driver).now();

                for _ in 0..3 {
                    launch(driver, function, own);
                }

                assert_eq!(Time(driver).now() - begin, 12 * US);
            },
        );
        if std::env::var_os("VGPU_TEST_CHILD").is_some() {
            return;
        }
    }
}
