//! The program's entrance.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferrule::main()
}
