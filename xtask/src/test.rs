//! `cargo xtask test`: every check that a change must pass.
//!
//! Stops at the first failure. A check that cannot run here says so when it is reached and again
//! at the end; in CI that is a failure.

use anyhow::{Context, Result, ensure};

use crate::run;
use crate::{deny, lab, left_out, tools, uml};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leaves out dependency rules, documentation, instruction counts, stories and tests that need
    /// IPVS, for the loop while writing.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Goes to the tests' runner as is, e.g. `-- core_079` for the tests with that in their name.
    #[arg(last = true, value_name = "RUNNER ARGUMENTS")]
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
    let left_out = left_out::begin()?;
    let result = steps(options, &left_out, &mut skipped);
    if result.is_ok() {
        println!("== passed in {:.1} s", begun.elapsed().as_secs_f64());
    }
    for reason in skipped {
        println!("   skipped: {reason}");
    }
    for line in left_out::read() {
        println!("   {line}");
    }
    result
}

fn steps(options: &Options, left_out: &str, skipped: &mut Vec<String>) -> Result<()> {
    let mut step = |name, work: &dyn Fn() -> Result<Outcome>| step(name, work, skipped);
    let tests = || done(tests(&options.nextest, left_out));

    step("tools", &|| done(tools::ensure()))?;
    step("format", &|| {
        done(
            run::cargo(["fmt", "--all", "--check"])
                .context("`cargo fmt --all` puts the formatting right"),
        )
    })?;
    // Whoever tries this for the first time sees tests first.
    if !run::is_ci() {
        step("tests", &tests)?;
    }
    step("clippy", &clippy)?;
    if !options.quick {
        step("dependency rules", &deny::rules)?;
        step("known vulnerabilities", &deny::advisories)?;
    }
    // `cargo test` ran them with the others.
    if run::is_ci() || tools::NEXTEST.is_installed() {
        step("doc tests", &|| {
            done(run::cargo(["test", "--workspace", "--doc", "--locked"]))
        })?;
    }
    if !options.quick {
        step("documentation", &documentation)?;
        step("instruction counts", &instruction_counts)?;
    }
    if options.quick || !options.nextest.is_empty() {
        skipped_by_choice("stories");
        skipped_by_choice("ipvs in User Mode Linux");
    } else {
        step("stories", &lab::stories)?;
        step("ipvs in User Mode Linux", &uml::step)?;
    }
    // There the count of tests is the last thing to read.
    if run::is_ci() {
        step("tests", &tests)?;
    }
    Ok(())
}

/// Formats, then runs the tests that look at the repository itself.
pub(crate) fn tidy() -> Result<()> {
    run::cargo(["fmt", "--all"])?;
    let runner: &[&str] = if tools::NEXTEST.is_installed() {
        &["nextest", "run"]
    } else {
        &["test"]
    };
    let tests = [
        "--locked",
        "-p",
        "ferrule-tests",
        "--test",
        "tidy",
        "--test",
        "parity",
    ];
    run::cargo(runner.iter().copied().chain(tests))
}

/// Runs all tests by nextest, or by `cargo test` where that is not installed: building it takes
/// longer than the tests.
fn tests(arguments: &[String], left_out: &str) -> Result<()> {
    let arguments = arguments.iter().map(String::as_str);
    let left_out = [(left_out::VARIABLE, left_out)];
    if tools::NEXTEST.is_installed() {
        let cargo = ["nextest", "run", "--workspace", "--locked"];
        return run::program("cargo", cargo.into_iter().chain(arguments), &left_out);
    }
    println!(
        "   cargo-nextest is not installed, so `cargo test` runs the tests one program after \
         the other; {} builds it, once",
        tools::NEXTEST.install_command()
    );
    // The first results, while the rest has not been built yet.
    if arguments.len() == 0 {
        run::cargo(["test", "--locked", "-p", "ferrule-core"])?;
    }
    let (rights, mut environment) = rights();
    environment.extend(left_out);
    let cargo = ["test", "--workspace", "--locked", "--no-fail-fast", "--"];
    let cargo = rights.into_iter().chain(cargo).chain(arguments);
    run::program("cargo", cargo, &environment)
}

/// What `cargo test` needs so that tests of someone who is not root have the rights of root over
/// networks of their own. With nextest each test sees to that by itself (`crates/testbed`).
fn rights() -> (Vec<&'static str>, Vec<(&'static str, &'static str)>) {
    let unshare = ["--user", "--map-root-user", "--net", "true"];
    let is_allowed = || run::capture("unshare", unshare).is_ok_and(|output| output.success);
    if tools::is_root() || !is_allowed() {
        return (Vec::new(), Vec::new());
    }
    let runner = "target.'cfg(all())'.runner=['unshare', '--user', '--map-root-user']";
    let environment = vec![
        ("FERRULE_TESTS_BEGAN_AGAIN", "1"),
        // That of the machine is root's.
        ("XTABLES_LOCKFILE", "/tmp/ferrule-tests-xtables.lock"),
    ];
    (vec!["--config", runner], environment)
}

fn clippy() -> Result<Outcome> {
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
}

fn instruction_counts() -> Result<Outcome> {
    if let Some(reason) = tools::missing(tools::Need::Counts) {
        return skip(format!("instruction counts: {reason}"));
    }
    done(crate::bench_check(false))
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

/// A step that cannot run here, for this reason.
pub(crate) fn skip(reason: String) -> Result<Outcome> {
    ensure!(!run::is_ci(), "nothing may be skipped in CI: {reason}");
    Ok(Outcome::Skipped(reason))
}

fn skipped_by_choice(name: &str) {
    println!("== {name}\n   left out, as asked\n");
}

fn done(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Done)
}
