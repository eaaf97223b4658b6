//! Measures what things cost and how the cost grows. Run by `cargo xtask bench`.
//!
//! Prints Markdown, so that a table can go into `docs/performance.md` as it is. Nothing here
//! asserts: timings on a shared machine are noisy, so each figure comes with its spread.

#![expect(
    clippy::print_stdout,
    reason = "the report is what this program is for"
)]
#![expect(clippy::disallowed_methods, reason = "a stopwatch reads the clock")]

mod cluster;
mod core;
mod spread;

#[global_allocator]
static ALLOCATOR: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["core"] => core::run(&[100, 1_000, 10_000, 50_000], 7, 2_000),
        ["core", "--quick"] => core::run(&[100, 1_000, 10_000], 3, 500),
        _ => {
            println!("usage: ferrule-bench core [--quick]");
            return std::process::ExitCode::FAILURE;
        }
    }
    std::process::ExitCode::SUCCESS
}
