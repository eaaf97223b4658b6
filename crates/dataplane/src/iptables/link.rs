//! The nft flavour's tables, spoken to directly.
//!
//! In: a [`Document`]. Out: success, or a [`Snag`] that says what helps. iptables itself needs
//! hundreds of times as long: it reads all rules before it changes one, and writes them one by one.

use std::io;

use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::nft::{self, BatchError, Held, Nft};
use ferrule_kernel::xt::Table;

use super::document::Document;
use super::listing::Listing;
use super::pack::{self, Known, Pack};
use crate::{kernel_family, said};

/// A conversation about one family's tables.
#[derive(Debug)]
pub struct Link {
    nft: Nft,
    family: Family,
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum Snag {
    /// A rule cannot be put in our expressions.
    #[error("a rule is beyond us")]
    Beyond,
    /// A chain does not have the rules that we believe it has.
    #[error("{0} was changed by somebody else")]
    Changed(String),
    /// The kernel refused.
    #[error("{message}")]
    Refused {
        /// Whose rule it refused, if it was a rule of somebody.
        owner: Option<PortKey>,
        /// The rule counts.
        counts: bool,
        /// What it said.
        message: String,
    },
    /// The kernel could not be asked, or its answer was lost.
    #[error("no answer from the kernel")]
    Lost(#[source] io::Error),
}

impl Link {
    /// Opens a conversation in the network namespace of the calling thread.
    pub fn open(family: Family) -> io::Result<Self> {
        let nft = Nft::open()?;
        Ok(Self { nft, family })
    }

    /// The port by which notifications name the changes made here.
    pub fn port(&self) -> u32 {
        self.nft.port()
    }

    /// What is in the tables.
    pub fn list(&mut self) -> Result<Listing, Snag> {
        Listing::read(&mut self.nft, self.family).map_err(unanswered)
    }

    /// Makes all changes of a document, stage by stage. With a listing of what is there some of
    /// them need not be made.
    pub fn send(&mut self, document: &Document, listing: Option<&Listing>) -> Result<(), Snag> {
        let family = self.family;
        let mut view = View {
            link: self,
            listing,
        };
        for stage in document.stages() {
            pack::packs(stage, family, &mut view, &mut |view, pack| {
                view.link.commit(pack)
            })?;
        }
        Ok(())
    }

    fn commit(&mut self, pack: &Pack<'_>) -> Result<(), Snag> {
        match self.nft.commit(&pack.batch) {
            Ok(_) => Ok(()),
            Err(error) => Err(explain(error, pack)),
        }
    }
}

struct View<'a> {
    link: &'a mut Link,
    listing: Option<&'a Listing>,
}

impl Known for View<'_> {
    fn listing(&self) -> Option<&Listing> {
        self.listing
    }

    fn rules(&mut self, table: Table, chain: &str) -> Result<Vec<Held<nft::Rule>>, Snag> {
        let family = kernel_family(self.link.family);
        let rules = self.link.nft.rules_of(family, table.as_str(), chain);
        rules.map_err(unanswered)
    }
}

fn unanswered(error: RequestError) -> Snag {
    Snag::Lost(said(error))
}

fn explain(error: BatchError, pack: &Pack<'_>) -> Snag {
    let message = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let step = match error {
        BatchError::Refused { step, .. } | BatchError::TooLong { step, .. } => Some(step),
        BatchError::Denied(_) | BatchError::Conflict => None,
        BatchError::Unsent { source, .. } | BatchError::Lost(source) => {
            return Snag::Lost(source);
        }
    };
    let (owner, counts) = step
        .and_then(|step| pack.marks.get(step).copied())
        .unwrap_or_default();
    Snag::Refused {
        owner: owner.cloned(),
        counts,
        message,
    }
}
