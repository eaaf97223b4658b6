//! Man pages and shell completions, made from what `--help` is made from.
//!
//! In: the command line as clap knows it, and the table of kube-proxy's flags. Out: files in a
//! folder. Only in builds with the feature `manual`: a release is packed with what such a build
//! writes.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::builder::Str;
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::config::flags::{Flags, Spec, TABLE};

/// Writes `man/*.1` and `completions/*` below this folder.
pub fn write(folder: &Path) -> Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    clap_mangen::generate_to(command(), &man).context("man pages")?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command(), "ferrule", &completions)
            .with_context(|| format!("completions for {shell}"))?;
    }
    Ok(())
}

/// The whole command line. What runs takes the flags of `ferrule proxy` apart itself.
fn command() -> Command {
    let flags = Flags::default();
    let shown = TABLE.iter().filter(|spec| spec.deprecated.is_none());
    let arguments: Vec<_> = shown.map(|spec| argument(spec, &flags)).collect();
    Cli::command().mut_subcommand("proxy", |proxy| {
        proxy
            .about("Run on a node in kube-proxy's place")
            .args(arguments)
    })
}

fn argument(spec: &Spec, flags: &Flags) -> Arg {
    let value = spec.value(flags);
    let argument = Arg::new(spec.name).long(spec.name).help(spec.help);
    let argument = match spec.short {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    match (value.word(), value.bare()) {
        ("", _) => argument.action(ArgAction::SetTrue),
        (word, Some(_)) => argument
            .value_name(Str::from(word))
            .num_args(0..=1)
            .require_equals(true),
        (word, None) => argument.value_name(Str::from(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_that_help_shows_is_in_the_manual() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let (page, fish) = (
            read("man/ferrule-proxy.1"),
            read("completions/ferrule.fish"),
        );
        for spec in TABLE.iter().filter(|spec| spec.deprecated.is_none()) {
            let in_roff = format!("\\-\\-{}", spec.name.replace('-', "\\-"));
            assert!(page.contains(&in_roff), "{}", spec.name);
            assert!(fish.contains(&format!("-l {}", spec.name)), "{}", spec.name);
        }
    }
}
