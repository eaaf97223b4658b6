//! iptables, by the programs that come with it.
//!
//! In: text for `iptables-restore`. Out: text of `iptables-save`, or an error that names the line of
//! the text at fault, where that is known. This is the only module that runs other programs.
//!
//! There are two flavours with the same language: legacy replaces tables through socket options and
//! is guarded by a lock file; nft translates to `nf_tables`. Which one a machine uses is found out
//! once, by [`Xt::open`].

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Family;

mod child;
mod version;

pub use version::{Flavour, Version};

/// A table of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Changes packets.
    Mangle,
    /// Lets packets pass, or not.
    Filter,
    /// Translates addresses.
    Nat,
}

impl Table {
    /// All that we use.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// The table of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why iptables failed.
#[derive(Debug, thiserror::Error)]
pub enum XtError {
    /// The program could not be run at all.
    #[error("cannot run {program}")]
    Unusable {
        /// Which program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel does not have the table, or no tables at all.
    #[error("{program}: the kernel lacks the table: {message}")]
    Missing {
        /// Which program.
        program: String,
        /// What it printed.
        message: String,
    },
    /// Another program held the lock until the timeout.
    #[error("{program}: the tables are locked by another program: {message}")]
    Locked {
        /// Which program.
        program: String,
        /// What it printed.
        message: String,
    },
    /// It may not change rules.
    #[error("{program} {message}")]
    NotPermitted {
        /// Which program.
        program: String,
        /// The capabilities that it needs, and what it printed.
        message: String,
    },
    /// It exited with an error.
    #[error("{program} failed: {message}")]
    Refused {
        /// Which program.
        program: String,
        /// The line of its input that is at fault, from 1.
        line: Option<usize>,
        /// What it printed.
        message: String,
    },
}

impl XtError {
    /// The program that failed.
    pub fn program(&self) -> &str {
        match self {
            Self::Unusable { program, .. }
            | Self::Missing { program, .. }
            | Self::Locked { program, .. }
            | Self::NotPermitted { program, .. }
            | Self::Refused { program, .. } => program,
        }
    }

    /// The same in the words of the standard library.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Unusable { source, .. } => source.kind(),
            Self::Missing { .. } => io::ErrorKind::Unsupported,
            Self::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
            Self::Locked { .. } | Self::Refused { .. } => io::ErrorKind::Other,
        }
    }
}

/// One family's iptables.
#[derive(Clone, Debug)]
pub struct Xt {
    programs: Programs,
    version: Version,
}

/// Which files are run.
#[derive(Clone, Debug)]
struct Programs {
    /// Where they are; otherwise the search path says.
    folder: Option<PathBuf>,
    family: Family,
    /// What stands behind `iptables` in their names.
    variant: &'static str,
}

/// How long a lock is waited for, in seconds.
const LOCK_TIMEOUT: &str = "5";

impl Xt {
    /// Finds iptables in the network namespace of the calling thread.
    ///
    /// The flavour is the one whose mangle table has a chain of these names, in whichever family;
    /// otherwise that of `iptables`.
    ///
    /// # Errors
    /// There are no such programs, or they do not work here.
    pub fn open(family: Family, hints: &[&str]) -> Result<Self, XtError> {
        Self::open_in(None, family, hints)
    }

    /// The same with programs from this folder.
    ///
    /// # Errors
    /// See [`Xt::open`].
    pub fn open_in(folder: Option<&Path>, family: Family, hints: &[&str]) -> Result<Self, XtError> {
        let plain = Programs {
            folder: folder.map(Path::to_owned),
            family,
            variant: "",
        };
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            let programs = Programs {
                variant: flavour.variant(),
                ..plain.clone()
            };
            for family in [Family::V4, Family::V6] {
                let other = Programs {
                    family,
                    ..programs.clone()
                };
                if other.has_hint(hints)? {
                    return Self::with(programs);
                }
            }
        }
        Self::with(plain)
    }

    /// iptables in this flavour, whatever the machine's own is.
    ///
    /// # Errors
    /// See [`Xt::open`].
    pub fn open_as(flavour: Flavour, family: Family) -> Result<Self, XtError> {
        Self::with(Programs {
            folder: None,
            family,
            variant: flavour.variant(),
        })
    }

    /// iptables in this flavour, whatever its programs are called. The kernel is not asked: in the
    /// legacy flavour the question would make tables.
    ///
    /// # Errors
    /// There are no such programs.
    pub fn open_for(flavour: Flavour, family: Family) -> Result<Self, XtError> {
        let find = |variant| {
            Self::found(Programs {
                folder: None,
                family,
                variant,
            })
        };
        find(flavour.variant()).or_else(|error| match find("") {
            Ok(xt) if xt.flavour() == flavour => Ok(xt),
            _ => Err(error),
        })
    }

    fn found(programs: Programs) -> Result<Self, XtError> {
        let text = programs.run("", &["--version"], "")?;
        let version = Version::parse(&text);
        Ok(Self { programs, version })
    }

    fn with(programs: Programs) -> Result<Self, XtError> {
        let xt = Self::found(programs)?;
        // Without support in the kernel the program is as good as none.
        for (table, chain) in [(Table::Nat, "POSTROUTING"), (Table::Filter, "INPUT")] {
            if xt.list(table, chain)?.is_none() {
                return Err(XtError::Refused {
                    program: "iptables".to_owned(),
                    line: None,
                    message: format!("the {table} table cannot be used"),
                });
            }
        }
        Ok(xt)
    }

    /// Which version of iptables it is, and of which flavour.
    pub const fn version(&self) -> &Version {
        &self.version
    }

    /// Which flavour it is.
    pub const fn flavour(&self) -> Flavour {
        self.version.flavour
    }

    /// Whether it knows `--random-fully`.
    pub fn has_random_fully(&self) -> bool {
        self.version.at_least(1, 6, 2)
    }

    /// All of a table, as text. Empty until it is first used.
    ///
    /// # Errors
    /// See [`XtError`].
    pub fn save(&self, table: Table) -> Result<String, XtError> {
        self.programs.run("-save", &["-t", table.as_str()], "")
    }

    /// Makes the changes in the text, and no others: each table at once, one after the other.
    ///
    /// # Errors
    /// See [`XtError`]. Tables before the one at fault are changed.
    pub fn restore(&self, text: &str) -> Result<(), XtError> {
        let flags = self.restore_flags();
        self.programs.run("-restore", flags, text).map(drop)
    }

    /// kube-proxy's flags; old versions cannot wait for the lock.
    fn restore_flags(&self) -> &'static [&'static str] {
        if self.version.at_least(1, 6, 2) {
            &["-w", LOCK_TIMEOUT, "--noflush", "--counters"]
        } else {
            &["--noflush", "--counters"]
        }
    }

    /// The same for one rule or chain: waiting came earlier there, and its timeout a little later.
    fn wait_flags(&self) -> &'static [&'static str] {
        if self.version.at_least(1, 4, 22) {
            &["-w", LOCK_TIMEOUT]
        } else if self.version.at_least(1, 4, 20) {
            &["-w"]
        } else {
            &[]
        }
    }

    /// The rules of one chain, as text; `None` if there is no such chain.
    ///
    /// # Errors
    /// See [`XtError`].
    pub fn list(&self, table: Table, chain: &str) -> Result<Option<String>, XtError> {
        let question = ["-S", chain, "-t", table.as_str()];
        let arguments = [self.wait_flags(), &question].concat();
        match self.programs.run("", &arguments, "") {
            Ok(text) => Ok(Some(text)),
            Err(XtError::Refused { message, .. }) if says_absent(&message) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Programs {
    fn run(&self, verb: &str, arguments: &[&str], input: &str) -> Result<String, XtError> {
        let stem = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let name = format!("{stem}{}{verb}", self.variant);
        let path = match &self.folder {
            None => OsString::from(&name),
            Some(folder) => folder.join(&name).into(),
        };
        child::run(&name, &path, arguments, input)
    }

    /// Whether this flavour has one of these chains. Without the right to look nobody knows, and the
    /// other flavour may be the wrong one.
    fn has_hint(&self, hints: &[&str]) -> Result<bool, XtError> {
        if hints.is_empty() {
            return Ok(false);
        }
        // Reading a table of the legacy flavour would make it.
        if self.variant == Flavour::Legacy.variant()
            && !legacy_tables(self.family).is_ok_and(|tables| tables.contains(&Table::Mangle))
        {
            return Ok(false);
        }
        match self.run("-save", &["-t", Table::Mangle.as_str()], "") {
            Ok(text) => {
                let mut chains = text.lines().filter_map(|line| line.strip_prefix(':'));
                Ok(chains.any(|line| hints.contains(&line.split(' ').next().unwrap_or(line))))
            }
            Err(error @ XtError::NotPermitted { .. }) => Err(error),
            Err(_) => Ok(false),
        }
    }
}

/// The tables of the legacy flavour in the network namespace of the calling thread. The kernel has
/// one from its first use on.
///
/// # Errors
/// The error of the kernel.
pub fn legacy_tables(family: Family) -> io::Result<Vec<Table>> {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match std::fs::read_to_string(names) {
        Ok(names) => Ok(names.lines().filter_map(Table::from_name).collect()),
        // A kernel without this flavour.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether a message says that something does not exist, in the words of either flavour.
fn says_absent(message: &str) -> bool {
    const WORDS: [&str; 5] = [
        // 1.8.9 of the nft flavour prints this of a chain while its table does not exist.
        "is incompatible, use 'nft' tool",
        "No chain/target/match by that name",
        "No such file or directory",
        "does a matching rule exist",
        "does not exist",
    ];
    // A missing table has nearly the same message; then nothing works.
    !message.contains("Table does not exist") && WORDS.iter().any(|word| message.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_recognised_in_the_words_of_both_flavours() {
        for message in [
            "iptables: No chain/target/match by that name.",
            "iptables v1.8.9 (nf_tables): chain `X' in table `nat' is incompatible, use 'nft' tool.",
            "iptables: Bad rule (does a matching rule exist in that chain?).",
        ] {
            assert!(says_absent(message), "{message}");
        }
        assert!(!says_absent(
            "can't initialize iptables table `nat': Table does not exist"
        ));
        assert!(!says_absent("Permission denied (you must be root)"));
    }

    #[test]
    fn ipt_006_ipt_010_restoring_waits_for_the_lock_where_it_can() {
        for (version, restoring, asking) in [
            ("v1.8.9 (nf_tables)", "-w 5 --noflush --counters", "-w 5"),
            ("v1.6.2", "-w 5 --noflush --counters", "-w 5"),
            ("v1.6.1", "--noflush --counters", "-w 5"),
            ("v1.4.22", "--noflush --counters", "-w 5"),
            ("v1.4.21", "--noflush --counters", "-w"),
            ("v1.4.19", "--noflush --counters", ""),
        ] {
            let programs = Programs {
                folder: None,
                family: Family::V4,
                variant: "",
            };
            let version = Version::parse(version);
            let xt = Xt { programs, version };
            assert_eq!(xt.restore_flags().join(" "), restoring, "{version:?}");
            assert_eq!(xt.wait_flags().join(" "), asking, "{version:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let folder = Path::new("/nonexistent");
        let error = Xt::open_in(Some(folder), Family::V6, &[]).unwrap_err();
        assert_eq!(error.to_string(), "cannot run ip6tables");
    }
}
