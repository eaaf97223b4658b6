//! Runs one path of the program, for `cargo xtask bench check` to count its instructions: `path NAME`, as the
//! benches do.
//!
//! What is read is what a real API server sent, which tests compare with JSON. This package is built
//! without optimisation for tests, and so it is here: the count is one of work, not of time.

use std::hint::black_box;
use std::process::ExitCode;

use ferrule::paths::{Collection, follow_pace, read_list, read_watch};

/// How often an answer is read.
const TIMES: usize = 200;
/// Changes that the pace is asked about.
const CHANGES: u32 = 10_000;

macro_rules! captured {
    ($of:ident, $name:literal) => {
        (
            Collection::$of,
            bytes_of(include_str!(concat!(
                "../src/watch/kubernetes/protobuf/testdata/",
                $name,
                ".hex"
            ))),
        )
    };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [_, name] = arguments.as_slice() else {
        return ExitCode::FAILURE;
    };
    match name.as_str() {
        "watch: protobuf lists" => {
            let lists = [
                captured!(Services, "services.list"),
                captured!(EndpointSlices, "slices.list"),
            ];
            measured(|| read(&lists, read_list));
        }
        "watch: protobuf changes" => {
            let watches = [
                captured!(Services, "services.watch"),
                captured!(EndpointSlices, "slices.watch"),
            ];
            measured(|| read(&watches, read_watch));
        }
        "sync: pace" => assert!(measured(|| follow_pace(CHANGES)) > CHANGES / 2),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// What counts. The name is the one by which a profiler finds it.
#[inline(never)]
fn measured<T>(path: impl FnOnce() -> T) -> T {
    black_box(path())
}

/// How an answer is read.
type Read = fn(Collection, &[u8], usize) -> Result<usize, String>;

fn read(answers: &[(Collection, Vec<u8>)], read: Read) {
    for (of, answer) in answers {
        for _ in 0..TIMES {
            let events = read(*of, answer, answer.len());
            assert!(events.expect("as it was captured") > 1, "nothing was in it");
        }
    }
}

/// The bytes of a captured file. Lines with `#` are its caption.
fn bytes_of(hex: &str) -> Vec<u8> {
    let lines = hex.lines().filter(|line| !line.starts_with('#'));
    let digits = lines.flat_map(str::split_whitespace);
    let byte = |text| u8::from_str_radix(text, 16).expect("two digits");
    digits.map(byte).collect()
}
