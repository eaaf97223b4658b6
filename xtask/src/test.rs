//! `cargo xtask test`: every check that a change must pass, in the order of cheapest first.
//!
//! Stops at the first failure. A check that cannot run here says so when it is reached and again
//! at the end.

use anyhow::{Context, Result};

use crate::run;
use crate::{deny, lab, tools, uml};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leaves out dependency rules, documentation, instruction counts and stories, for the loop
    /// while writing.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Goes to `cargo nextest run` as is, e.g. `-- core_079` for the tests with that in their name.
    #[arg(last = true, value_name = "NEXTEST ARGUMENTS")]
    pub(crate) nextest: Vec<String>,
}

/// How a step that did not fail ended.
pub(crate) enum Outcome {
    Done,
    /// It could not run here; the reason is for the reader.
    Skipped(String),
}

/// Runs all steps.
pub(crate) fn all(options: &Options) -> Result<()> {
    let begun = run::now();
    let mut skipped = Vec::new();
    let mut step = |name, work: &dyn Fn() -> Result<Outcome>| step(name, work, &mut skipped);

    step("tools", &|| {
        done(if options.quick {
            tools::ensure(&[tools::NEXTEST])
        } else {
            tools::ensure(&[tools::DENY, tools::NEXTEST])
        })
    })?;
    step("format", &|| {
        done(
            run::cargo(["fmt", "--all", "--check"])
                .context("`cargo fmt --all` puts the formatting right"),
        )
    })?;
    step("clippy", &|| {
        let cargo = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ];
        done(run::cargo(cargo))
    })?;
    if !options.quick {
        step("dependency rules", &deny::rules)?;
        step("known vulnerabilities", &deny::advisories)?;
    }
    step("doc tests", &|| {
        done(run::cargo(["test", "--workspace", "--doc", "--locked"]))
    })?;
    if !options.quick {
        step("documentation", &documentation)?;
    }
    if !options.quick {
        step("instruction counts", &|| done(crate::bench_with(["check"])))?;
    }
    if options.quick || !options.nextest.is_empty() {
        skipped_by_choice("stories");
        skipped_by_choice("ipvs in User Mode Linux");
    } else {
        step("stories", &lab::stories)?;
        step("ipvs in User Mode Linux", &uml::step)?;
    }
    // Last, so that the count of tests is the last thing to read.
    step("tests", &|| {
        let cargo = ["nextest", "run", "--workspace", "--locked"];
        done(run::cargo(
            cargo
                .into_iter()
                .chain(options.nextest.iter().map(String::as_str)),
        ))
    })?;

    println!("== passed in {:.1} s", begun.elapsed().as_secs_f64());
    for reason in skipped {
        println!("   skipped: {reason}");
    }
    Ok(())
}

/// Formats, then runs the tests that look at the repository itself.
pub(crate) fn tidy() -> Result<()> {
    tools::ensure(&[tools::NEXTEST])?;
    run::cargo(["fmt", "--all"])?;
    let tests = ["--test", "tidy", "--test", "parity"];
    run::cargo(
        ["nextest", "run", "--locked", "-p", "ferrule-tests"]
            .into_iter()
            .chain(tests),
    )
}

/// Builds the documentation of everything, private items too, so that no link in it is dead.
fn documentation() -> Result<Outcome> {
    let cargo = [
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ];
    done(run::program(
        "cargo",
        cargo,
        &[("RUSTDOCFLAGS", "-Dwarnings")],
    ))
}

fn step(name: &str, work: &dyn Fn() -> Result<Outcome>, skipped: &mut Vec<String>) -> Result<()> {
    println!("== {name}");
    let begun = run::now();
    let outcome = work().with_context(|| format!("step \"{name}\""))?;
    let seconds = begun.elapsed().as_secs_f64();
    match outcome {
        Outcome::Done => println!("   done in {seconds:.1} s\n"),
        Outcome::Skipped(reason) => {
            println!("   skipped: {reason}\n");
            skipped.push(reason);
        }
    }
    Ok(())
}

fn skipped_by_choice(name: &str) {
    println!("== {name}\n   left out, as asked\n");
}

fn done(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Done)
}
