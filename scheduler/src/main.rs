//! The scheduler as a program. Its code is in the library: the compiler would generate much of it twice otherwise.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    scheduler::program::main()
}
