//! The library's exports and the functions that it hands out by name, compared with the recorded lists.

use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::process::Command;
use std::ptr::null_mut;

use crate::common::{Driver, alone, call, ok};
use cuda_api::driver::*;
use cuda_api::{DRIVER_SYMBOLS, PROC_ADDRESSES};

/// Every name that the file has, whichever driver it becomes when it is loaded.
fn symbols_of_the_file() -> BTreeSet<String> {
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(crate::common::path())
        .output();
    let listed = String::from_utf8(listed.expect("nm comes with the compiler").stdout).unwrap();
    listed
        .lines()
        .filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned()))
        .collect()
}

const OURS: [&str; 7] = [
    "vgpu_simulated_driver",
    "vgpuSimNow",
    "vgpuSimHasOwnClock",
    "vgpuSimBusyNs",
    "vgpuSimSleepUntil",
    "vgpuSimJoin",
    "vgpuSimLeave",
];

/// The names that a program finds in it.
fn symbols_of_the_library(driver: &Driver) -> BTreeSet<String> {
    let all = symbols_of_the_file();
    all.into_iter().filter(|name| driver.has(name)).collect()
}

#[test]
fn the_library_exports_the_real_names_and_seven_of_its_own() {
    let name = "the_library_exports_the_real_names_and_seven_of_its_own";
    alone(name, &[], |driver| {
        let names = DRIVER_SYMBOLS.iter().chain(&OURS);
        let expected: BTreeSet<String> = names.map(|&name| name.to_owned()).collect();

        let found = symbols_of_the_library(driver);
        let differ: Vec<_> = found.symmetric_difference(&expected).collect();
        assert_eq!(differ, Vec::<&String>::new());
    });
}

#[test]
fn a_newer_driver_exports_its_own_names_and_no_newer_ones() {
    let name = "a_newer_driver_exports_its_own_names_and_no_newer_ones";
    alone(name, &[("VGPU_SIM_DRIVER", "13.0")], |driver| {
        let of_13_0 = |row: &&cuda_api::ProcAddress| (12_041..=13_000).contains(&row.since);
        let newer = PROC_ADDRESSES.iter().filter(of_13_0).map(|row| row.symbol);
        let names = DRIVER_SYMBOLS.iter().chain(&OURS).copied().chain(newer);
        let expected: BTreeSet<String> = names.map(str::to_owned).collect();

        let found = symbols_of_the_library(driver);
        let differ: Vec<_> = found.symmetric_difference(&expected).collect();
        assert_eq!(differ, Vec::<&String>::new());
        assert!(driver.has("cuCtxCreate_v4") && !driver.has("cuMulticastBindMem_v2"));
    });
}

#[test]
fn names_can_be_missing() {
    let set = [("VGPU_SIM_MISSING", "cuMemAllocAsync,cuFuncLoad")];
    alone("names_can_be_missing", &set, |driver| {
        assert!(!driver.has("cuMemAllocAsync") && driver.has("cuMemAllocAsync_ptsz"));
        let answer = ask(driver, "cuMemAllocAsync", 12_000, 0);
        assert_eq!((answer.status, answer.address), (1, 0));
    });
}

#[test]
fn a_contrary_driver_hands_out_other_addresses_than_it_exports() {
    let name = "a_contrary_driver_hands_out_other_addresses_than_it_exports";
    alone(name, &[("VGPU_SIM_CONTRARY", "1")], |driver| {
        ok!(driver, cuInit(0));
        let answer = ask(driver, "cuDeviceGetCount", 12_000, 0);
        let exported: unsafe extern "C" fn() = driver.find("cuDeviceGetCount");
        assert_ne!(answer.address, exported as usize);

        let mut count = 0;
        let address = std::ptr::with_exposed_provenance::<()>(answer.address);
        // SAFETY: the address that the driver has handed out for a function of this type.
        let function: signature::cuDeviceGetCount = unsafe { std::mem::transmute(address) };
        // SAFETY: a count of ours.
        assert_eq!(unsafe { function(&raw mut count) }, CuResult::SUCCESS);
        assert_eq!(count, 2);
    });
}

#[test]
fn the_library_has_the_soname_and_the_binding_of_the_real_one() {
    let told = Command::new("readelf")
        .arg("-d")
        .arg(crate::common::path())
        .output();
    let told = String::from_utf8(told.expect("readelf comes with the compiler").stdout).unwrap();

    assert!(told.contains("Library soname: [libcuda.so.1]"), "{told}");
    assert!(told.contains("SYMBOLIC"), "{told}");
}

#[test]
fn an_unwritten_function_says_not_supported() {
    alone("an_unwritten_function_says_not_supported", &[], |driver| {
        let function: unsafe extern "C" fn(*mut c_void) -> CuResult = driver.find("cuEGLApiInit");

        // SAFETY: it reads none of its arguments.
        assert_eq!(unsafe { function(null_mut()) }, CuResult::NOT_SUPPORTED);
    });
}

struct Answer {
    result: CuResult,
    status: u32,
    address: usize,
}

fn ask(driver: &Driver, name: &str, version: i32, flags: u64) -> Answer {
    let name = CString::new(name).unwrap();
    let (mut address, mut status) = (null_mut(), 99);
    let result = call!(
        driver,
        cuGetProcAddress_v2(
            name.as_ptr(),
            &raw mut address,
            version,
            flags,
            &raw mut status
        )
    );
    Answer {
        result,
        status,
        address: address.addr(),
    }
}

#[test]
fn every_recorded_name_is_answered_for_version_and_mode() {
    let name = "every_recorded_name_is_answered_for_version_and_mode";
    alone(name, &[("VGPU_SIM_DRIVER", "14.0")], |driver| {
        let mut exports = 0;
        for row in PROC_ADDRESSES {
            let flags = if row.per_thread { 2 } else { 1 };
            let answer = ask(driver, row.name, row.since, flags);

            assert_eq!(
                (answer.result, answer.status),
                (CuResult::SUCCESS, 0),
                "{row:?}"
            );
            if DRIVER_SYMBOLS.contains(&row.symbol) {
                let exported: unsafe extern "C" fn() = driver.find(row.symbol);
                assert_eq!(answer.address, exported as usize, "{row:?}");
                exports += 1;
            }
        }
        assert!(exports > 600, "{exports} names were compared");
    });
}

#[test]
fn names_newer_than_the_driver_are_unknown_to_it() {
    alone(
        "names_newer_than_the_driver_are_unknown_to_it",
        &[],
        |driver| {
            let newer = ask(driver, "cuLogsCurrent", 13_000, 0);
            assert_eq!(
                (newer.result, newer.status, newer.address),
                (CuResult::SUCCESS, 1, 0)
            );

            let too_old = ask(driver, "cuMemAllocAsync", 10_000, 0);
            assert_eq!((too_old.status, too_old.address), (2, 0));

            assert_eq!(
                ask(driver, "cuInit", 12_000, 3).result,
                CuResult::INVALID_VALUE
            );
            let mut address = null_mut();
            let first = call!(
                driver,
                cuGetProcAddress(c"cuNothing".as_ptr(), &raw mut address, 12_000, 0)
            );
            assert_eq!(first, CuResult::NOT_FOUND);
        },
    );
}

#[test]
fn the_reported_version_can_be_set() {
    alone(
        "the_reported_version_can_be_set",
        &[("VGPU_SIM_DRIVER", "13.1")],
        |driver| {
            let mut version = 0;
            ok!(driver, cuDriverGetVersion(&raw mut version));
            assert_eq!(version, 13_010);
        },
    );
}
