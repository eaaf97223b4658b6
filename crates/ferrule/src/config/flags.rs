//! The command line: every flag, how it is parsed, and its help.
//!
//! In: the words after the program's name. Out: [`Flags`], where each flag has its value and
//! knows whether it was given; or a [`parse::FlagError`] with everything to print. [`table`] declares
//! the flags, [`value`] their types, [`parse`](mod@parse) the grammar, [`help`] the text for
//! people. What flags mean together with a file is decided in [`super::options`].

pub mod help;
pub mod parse;
pub mod table;
pub mod value;

pub use parse::parse;
pub use table::{Flags, Spec, TABLE};
pub use value::VersionFlag;

use crate::version::{self, KUBERNETES as KUBERNETES_VERSION};

/// The name in usage and messages; scripts and people know the program by it.
pub const PROGRAM: &str = "kube-proxy";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Print this on stdout and leave with success.
    Print(String),
    /// Go on with [`super::options::complete`].
    Run,
}

impl Flags {
    /// What the command line asks for, before any file is read.
    pub fn request(&self) -> Request {
        if self.help.value {
            return Request::Print(help::help());
        }
        match &self.version.value {
            VersionFlag::Off | VersionFlag::Reported(_) => Request::Run,
            VersionFlag::Print => Request::Print(format!("Kubernetes {KUBERNETES_VERSION}\n")),
            VersionFlag::Raw => Request::Print(raw_version()),
        }
    }

    /// The Kubernetes version this program says it is.
    pub fn reported_version(&self) -> &str {
        match &self.version.value {
            VersionFlag::Reported(version) => version,
            _ => KUBERNETES_VERSION,
        }
    }

    /// Every flag with its value as text, by name: hidden ones and `help` too.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries: Vec<_> = TABLE
            .iter()
            .map(|spec| (spec.name, spec.value(self).text()))
            .collect();
        entries.sort_unstable();
        entries
    }
}

/// Begins like kube-proxy's, and goes on with ourselves.
fn raw_version() -> String {
    let (major, minor) = version::major_and_minor();
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{KUBERNETES_VERSION}\", \
         Program:\"{}\", ProgramVersion:\"{}\", Platform:\"{}/{}\"}}\n",
        env!("CARGO_PKG_NAME"),
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

#[cfg(test)]
mod tests;
