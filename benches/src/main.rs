//! Measures what things cost and how the cost grows. Run by `cargo xtask bench`.
//!
//! Prints Markdown, so that a table can go into `docs/performance.md` as it is. Nothing here
//! asserts: timings on a shared machine are noisy, so each figure comes with its spread.

#![expect(
    clippy::print_stdout,
    reason = "the report is what this program is for"
)]
#![expect(clippy::disallowed_methods, reason = "a stopwatch reads the clock")]

mod check;
mod cluster;
mod contest;
mod core;
mod floor;
mod memory;
mod nftables;
mod paths;
mod relay;
mod sources;
mod spread;

#[global_allocator]
static ALLOCATOR: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

const FULL: nftables::Extent = nftables::Extent {
    sizes: &[100, 1_000, 10_000, 50_000],
    wholes: 7,
    changes: 2_000,
};
const QUICK: nftables::Extent = nftables::Extent {
    sizes: &[100, 1_000, 10_000],
    wholes: 3,
    changes: 400,
};

const RELAY: relay::Extent = relay::Extent {
    rounds: 7,
    stream: 1 << 30,
    requests: 10_000,
    connections: 1_000,
    idle: 10_000,
    datagrams: 16_000,
    hostile: (200, 400),
};
const RELAY_QUICK: relay::Extent = relay::Extent {
    rounds: 3,
    stream: 1 << 27,
    requests: 1_000,
    connections: 100,
    idle: 1_000,
    datagrams: 1_600,
    hostile: (20, 40),
};
const FULL_SOURCES: sources::Extent = sources::Extent {
    sizes: &[
        (1, 1_000),
        (1, 20_000),
        (1, 100_000),
        (100, 4),
        (1_000, 4),
        (5_000, 4),
        (1_000, 20),
    ],
    wholes: 5,
    changes: 200,
};
const QUICK_SOURCES: sources::Extent = sources::Extent {
    sizes: &[(1, 1_000), (1, 20_000), (100, 4), (1_000, 4)],
    wholes: 3,
    changes: 50,
};

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["core"] => core::run(&[100, 1_000, 10_000, 50_000], 7, 2_000),
        ["core", "--quick"] => core::run(&[100, 1_000, 10_000], 3, 500),
        ["nftables"] => return code(nftables(&FULL, &FULL_SOURCES)),
        ["nftables", "--quick"] => return code(nftables(&QUICK, &QUICK_SOURCES)),
        ["restarts"] => {
            let measured = nftables::only_restarts(&FULL);
            return code(measured.map_err(|error| error.to_string()));
        }
        ["sources"] => {
            return code(sources::run(&FULL_SOURCES).map_err(|error| error.to_string()));
        }
        ["memory"] => return code(memory::run().map_err(|error| error.to_string())),
        ["relay", "serve", transport, endpoint] => {
            return code(relay::serve(transport, endpoint).map_err(|error| error.to_string()));
        }
        ["relay", "--quick", ref programs @ ..] => return relay(&RELAY_QUICK, programs),
        ["relay", ref programs @ ..] => return relay(&RELAY, programs),
        ["check", example] => return code(check::run(example.as_ref(), false)),
        ["check", "--renew", example] => return code(check::run(example.as_ref(), true)),
        ["path", name] => return code(check::run_path(name)),
        _ => {
            println!(
                "usage: ferrule-bench core [--quick] | nftables [--quick] | restarts | sources | memory \
                 | relay [--quick] [--haproxy PROGRAM] [--nginx PROGRAM] | check [--renew] EXAMPLE | path NAME"
            );
            return std::process::ExitCode::FAILURE;
        }
    }
    std::process::ExitCode::SUCCESS
}

/// `words` are pairs: a flag and a program.
fn relay(extent: &relay::Extent, words: &[&str]) -> std::process::ExitCode {
    let mut programs = relay::Programs::default();
    for pair in words.chunks(2) {
        match pair {
            ["--haproxy", program] => programs.haproxy = Some(program),
            ["--nginx", program] => programs.nginx = Some(program),
            other => return code(Err(format!("what is {}?", other.join(" ")))),
        }
    }
    code(relay::run(extent, programs).map_err(|error| error.to_string()))
}

fn nftables(extent: &nftables::Extent, sources: &sources::Extent) -> Result<(), String> {
    let done = nftables::run(extent).and_then(|()| {
        println!();
        sources::run(sources)
    });
    done.map_err(|error| error.to_string())
}

fn code(result: Result<(), String>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("\n{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
