//! Removes what is ours from the tables of both flavours, whichever of them is in use.
//!
//! In: the layouts of all modes that share chains. Out: how many steps it took. `nf_tables` is read
//! and written directly, so that an image without iptables removes what iptables wrote. The older
//! flavour takes its programs; they are run only where the kernel has such tables.

use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::xt::{Flavour, Table, Xt, XtError, legacy_tables};

use super::error::LinkError;
use super::installed::Saved;
use super::layout::Layout;
use super::link::Link;
use super::removal::removal;
use crate::kernel_family;

/// Why something of ours may still be there.
#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    /// Reading or writing `nf_tables` failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The kernel could not be asked which tables of the older flavour it has.
    #[error("cannot list the tables of the older flavour of iptables")]
    Tables(#[source] io::Error),
    /// The kernel has tables of the older flavour, and there is no program to read them.
    #[error(
        "the kernel has tables of the older flavour of iptables ({tables}) and they cannot be read"
    )]
    Unread {
        /// Which ones.
        tables: String,
        /// Why.
        #[source]
        source: XtError,
    },
    /// A program of the older flavour failed.
    #[error(transparent)]
    Program(#[from] XtError),
}

impl PurgeError {
    /// What kind of failure it was, as far as the kernel said.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Link(LinkError::Lost(error)) | Self::Tables(error) => error.kind(),
            Self::Link(_) | Self::Unread { .. } | Self::Program(_) => io::ErrorKind::Other,
        }
    }
}

/// Removes everything of these layouts. Both flavours are tried, whatever happens to the other; the
/// first failure is returned.
pub fn purge(family: Family, layouts: &[&'static Layout]) -> Result<usize, PurgeError> {
    let nft = purge_nft(family, layouts);
    let legacy = purge_legacy(family, layouts);
    Ok(nft? + legacy?)
}

fn purge_nft(family: Family, layouts: &[&'static Layout]) -> Result<usize, LinkError> {
    let Some(layout) = layouts.first() else {
        return Ok(0);
    };
    let mut link = match Link::open(family, layout) {
        Ok(link) => link,
        Err(error) if lacks_nf_tables(&error) => return Ok(0),
        Err(error) => return Err(LinkError::Lost(error)),
    };
    match purge_directly(&mut link, layouts) {
        // Another process may have changed something after we had read it.
        Err(LinkError::Refused { .. } | LinkError::Changed(_)) => {
            purge_directly(&mut link, layouts)
        }
        result => result,
    }
}

fn purge_directly(link: &mut Link, layouts: &[&'static Layout]) -> Result<usize, LinkError> {
    let listing = match link.list_for_removal() {
        Ok(listing) => listing,
        Err(LinkError::Lost(error)) if lacks_nf_tables(&error) => return Ok(0),
        Err(error) => return Err(error),
    };
    let document = removal(layouts, &listing);
    link.send(&document, Some(&listing))?;
    Ok(document.len())
}

/// A kernel without `nf_tables` does not understand the question, and has no rules in it.
fn lacks_nf_tables(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    matches!(error.kind(), InvalidInput | Unsupported)
}

fn purge_legacy(family: Family, layouts: &[&'static Layout]) -> Result<usize, PurgeError> {
    let kernel = kernel_family(family);
    // Only tables that exist are read: reading one makes it.
    let tables = legacy_tables(kernel).map_err(PurgeError::Tables)?;
    if tables.is_empty() {
        return Ok(0);
    }
    let xt = Xt::open_for(Flavour::Legacy, kernel).map_err(|source| PurgeError::Unread {
        tables: names(&tables),
        source,
    })?;
    let mut saved = Saved::default();
    for table in tables {
        saved.insert(table, xt.save(table)?);
    }
    let document = removal(layouts, &saved.installed(family));
    if document.len() > 0 {
        xt.restore(&document.text())?;
    }
    Ok(document.len())
}

fn names(tables: &[Table]) -> String {
    let names: Vec<&str> = tables.iter().map(|table| table.as_str()).collect();
    names.join(", ")
}
