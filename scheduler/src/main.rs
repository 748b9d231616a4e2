//! The scheduler as a program. All of it is in the library, so that the compiler makes its code once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    scheduler::program::main()
}
