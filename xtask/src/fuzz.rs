//! `cargo xtask fuzz`: feeds the reader of the API server's protobuf with anything, for a while.
//!
//! The compiler itself puts the instruments in that libFuzzer is led by, so the stable one will do. What
//! leads to new paths is kept in `target/fuzz/corpus` and is where the next run begins.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::run;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// What libFuzzer needs of every function: counters, where they are, and what is compared.
const INSTRUMENTS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks";

/// What a real API server sent, which tests compare with JSON; in the target's order.
const CAPTURED: &str = "crates/ferrule/src/watch/kubernetes/protobuf/testdata";
const COLLECTIONS: [&str; 5] = ["services", "slices", "nodes", "cidrs", "endpoints"];

pub(crate) fn run(options: &Options) -> Result<()> {
    let corpus = seed(&run::root().join("target/fuzz/corpus"))?;
    // With a target named, build scripts are spared the instruments.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let build = [
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "target/fuzz",
        "--target",
        &target,
    ];
    run::program("cargo", build, &[("RUSTFLAGS", INSTRUMENTS)])?;
    let arguments = [
        corpus.display().to_string(),
        format!("-max_total_time={}", options.seconds),
        "-max_len=65536".to_owned(),
        // A few bytes must not ask for gigabytes.
        "-rss_limit_mb=1024".to_owned(),
        "-artifact_prefix=target/fuzz/".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let arguments = arguments.iter().map(String::as_str);
    let program = format!("target/fuzz/{target}/release/watch");
    run::program(&program, arguments, &[])
}

/// Lays what was captured into the corpus, each with the byte before it that says what it is.
fn seed(corpus: &Path) -> Result<PathBuf> {
    fs::create_dir_all(corpus)?;
    for (number, collection) in (0_u8..).zip(COLLECTIONS) {
        for (how, name) in [(0, "list"), (1, "watch")] {
            let file = format!("{CAPTURED}/{collection}.{name}.hex");
            let text = fs::read_to_string(run::root().join(&file))
                .with_context(|| format!("cannot read {file}"))?;
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let digits = lines.flat_map(str::split_whitespace);
            let bytes = digits.map(|digits| u8::from_str_radix(digits, 16));
            let bytes = std::iter::once(Ok(number * 2 + how)).chain(bytes);
            let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
            fs::write(corpus.join(format!("{collection}.{name}")), bytes)?;
        }
    }
    Ok(corpus.to_owned())
}
