//! `cuGetProcAddress`: names to addresses, by version and default-stream mode, from the recorded table.
//! Answers only names that a driver of the reported version has.

use core::ffi::{CStr, c_char, c_void};

use cuda_api::driver::*;
use cuda_api::{PROC_ADDRESSES, ProcAddress};

use crate::base::border::{Done, invalid_if, refuse_if, write, write_if};
use crate::calls::init;
use crate::process::choices;
use crate::process::exported;
use crate::{ADDRESSES, Address};

calls! {
    cuGetProcAddress(symbol, out, cuda_version, flags) => {
        let found = look_up(symbol, out, cuda_version, flags)?;
        // The first form, of CUDA 11, cannot report it in another way.
        refuse_if(found != FOUND, CuResult::NOT_FOUND)
    };
    cuGetProcAddress_v2(symbol, out, cuda_version, flags, symbol_status) => {
        let found = look_up(symbol, out, cuda_version, flags)?;
        write_if(symbol_status, found);
        Ok(())
    };
}

const PER_THREAD_DEFAULT_STREAM: u64 = 2;
const FOUND: CuDriverProcAddressQueryResult = 0;
const NO_SUCH_SYMBOL: CuDriverProcAddressQueryResult = 1;
const VERSION_NOT_SUFFICIENT: CuDriverProcAddressQueryResult = 2;

fn look_up(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Done<CuDriverProcAddressQueryResult> {
    invalid_if(symbol.is_null() || flags > PER_THREAD_DEFAULT_STREAM)?;
    // SAFETY: the caller passes a string.
    let name = unsafe { CStr::from_ptr(symbol) }
        .to_str()
        .unwrap_or_default();
    let per_thread = flags == PER_THREAD_DEFAULT_STREAM;
    let answer = resolve(name, version, per_thread, init::driver_version());
    let row = answer.ok().filter(|row| exported::has(row.symbol));
    let address = row.map_or(std::ptr::null(), |row| handed_out(row.symbol));
    write(out, address.cast_mut().cast::<c_void>())?;
    Ok(match answer {
        Ok(_) if !address.is_null() => FOUND,
        Err(Absent::TooOld) => VERSION_NOT_SUFFICIENT,
        Ok(_) | Err(Absent::NoName) => NO_SUCH_SYMBOL,
    })
}

/// Why a name has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    NoName,
    TooOld,
}

/// The row that a name means to a program of this version, under a driver of `driver_version`.
/// Lenient as the real one is: a name that is a little newer than the version asked for (the same
/// major version) is answered with its first form.
fn resolve(
    name: &str,
    version: i32,
    per_thread: bool,
    driver_version: i32,
) -> Result<&'static ProcAddress, Absent> {
    let start = PROC_ADDRESSES.partition_point(|row| row.name < name);
    let rows = PROC_ADDRESSES[start..]
        .iter()
        .take_while(|row| row.name == name)
        .filter(|row| row.since <= driver_version);
    let newest = |thread: bool| {
        rows.clone()
            .filter(|row| row.per_thread == thread && row.since <= version)
            .max_by_key(|row| row.since)
    };
    let own = per_thread.then(|| newest(true)).flatten();
    if let Some(row) = own.or_else(|| newest(false)) {
        return Ok(row);
    }
    let plain = rows.clone().filter(|row| !row.per_thread);
    let first = plain.min_by_key(|row| row.since);
    match first {
        None => Err(Absent::NoName),
        Some(row) if row.since / 1000 == version / 1000 => {
            let own =
                |other: &&ProcAddress| other.per_thread == per_thread && other.since == row.since;
            Ok(rows.clone().find(own).unwrap_or(row))
        }
        Some(_) => Err(Absent::TooOld),
    }
}

/// The address that a program gets for a function: the exported one, or another one of the same function.
fn handed_out(symbol: &str) -> *const () {
    if choices::hands_out_other_addresses() {
        found(symbol).map_or(std::ptr::null(), |it| it.other)
    } else {
        address_of(symbol)
    }
}

/// The address of a driver function with this exact name; null if there is none.
fn address_of(symbol: &str) -> *const () {
    found(symbol).map_or(std::ptr::null(), |it| it.address)
}

fn found(symbol: &str) -> Option<&'static Address> {
    let index = ADDRESSES.binary_search_by(|it| it.name.cmp(symbol)).ok()?;
    Some(&ADDRESSES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The function that a driver of CUDA 12.4 answers with.
    fn symbol(name: &str, version: i32, per_thread: bool) -> Result<&'static str, Absent> {
        resolve(name, version, per_thread, 12_040).map(|row| row.symbol)
    }

    #[test]
    fn every_recorded_answer_is_given_for_version_and_mode() {
        for row in PROC_ADDRESSES {
            let found = resolve(row.name, row.since, row.per_thread, 99_000);
            assert_eq!(found, Ok(row));
            assert!(!address_of(row.symbol).is_null(), "{row:?} is nowhere");
        }
    }

    #[test]
    fn a_version_between_two_rows_gets_the_older_one() {
        let symbol = |version| symbol("cuStreamGetCaptureInfo", version, false);

        assert_eq!(symbol(11_020), Ok("cuStreamGetCaptureInfo"));
        assert_eq!(symbol(12_020), Ok("cuStreamGetCaptureInfo_v2"));
        assert_eq!(symbol(13_000), Ok("cuStreamGetCaptureInfo_v3"));
    }

    #[test]
    fn a_name_newer_than_the_driver_is_unknown_to_it() {
        assert_eq!(symbol("cuCtxCreate", 13_000, false), Ok("cuCtxCreate_v3"));
        assert_eq!(symbol("cuLogsCurrent", 13_000, false), Err(Absent::NoName));
        assert!(resolve("cuLogsCurrent", 13_000, false, 13_000).is_ok());
    }

    #[test]
    fn a_program_a_little_older_than_a_name_still_gets_it() {
        let since = |version| resolve("cuMemAllocAsync", version, false, 12_040).map(|r| r.since);

        assert_eq!(since(11_000), Ok(11_020));
        assert_eq!(since(10_020), Err(Absent::TooOld));
    }

    #[test]
    fn a_name_without_a_per_thread_form_gets_the_plain_one() {
        assert_eq!(symbol("cuMemFree", 12_000, true), Ok("cuMemFree_v2"));
        assert_eq!(
            symbol("cuMemcpyHtoD", 12_000, true),
            Ok("cuMemcpyHtoD_v2_ptds")
        );
    }
}
