//! The nft flavour's tables, read and written over netlink.
//!
//! In: a [`Document`]. Out: success, or a [`LinkError`]. iptables' own programs do
//! the same with much more effort: docs/performance.md has the figures.

use std::collections::BTreeMap;
use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::nft::{BatchError, Mark, Nft};
use ferrule_kernel::xt::Table;

use super::base_chains;
use super::chain::Chain;
use super::document::{Document, Stage, Step};
use super::error::LinkError;
use super::layout::Layout;
use super::listen::concerns_us;
use super::listing::Listing;
use super::pack::{self, Known, Pack};
use super::rows::Rows;
use crate::{Listener, Writers, kernel_family, said};

/// A netlink socket for one family's tables.
#[derive(Debug)]
pub struct Link {
    nft: Nft,
    family: Family,
    layout: &'static Layout,
    /// The state of all rules when the tables were read.
    read: Option<Mark>,
    /// Chains in which single rules came and went before, as we left them.
    rows: BTreeMap<(Table, Chain), Rows>,
}

impl Link {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(family: Family, layout: &'static Layout) -> io::Result<Self> {
        let nft = Nft::open()?;
        Ok(Self {
            nft,
            family,
            layout,
            read: None,
            rows: BTreeMap::new(),
        })
    }

    /// Writes as one of these writers.
    pub fn join(&mut self, writers: &Writers) {
        self.nft.join(writers);
    }

    /// Listens to external changes, also those since the tables were read.
    pub fn listen(&mut self) -> Listener {
        let (layout, tables) = (self.layout, &["mangle", "filter", "nat"]);
        let concerns = |change: &_| concerns_us(layout, change);
        Listener::open(self.family, &mut self.nft, self.read, tables, concerns)
    }

    /// What is in the tables.
    pub fn list(&mut self) -> Result<Listing, LinkError> {
        self.rows.clear();
        // Before reading: what comes meanwhile counts as unknown.
        self.read = Some(self.nft.mark().map_err(unanswered)?);
        Listing::read(&mut self.nft, self.family, self.layout).map_err(unanswered)
    }

    /// Makes all changes of a document, stage by stage. With a listing of what is installed some of
    /// them need not be made.
    pub fn send(
        &mut self,
        document: &Document,
        listing: Option<&Listing>,
    ) -> Result<(), LinkError> {
        let (layout, family) = (self.layout, self.family);
        let mut view = View {
            link: self,
            listing,
        };
        for stage in document.stages() {
            view.link.forget(stage);
            pack::packs(layout, stage, family, &mut view, &mut |view, pack| {
                view.link.commit(stage.table, pack)
            })?;
        }
        Ok(())
    }

    /// What is written anew is not what we knew.
    fn forget(&mut self, stage: &Stage) {
        for step in &stage.declared {
            if let Step::Declare(chain) = step {
                self.rows.remove(&(stage.table, *chain));
            }
        }
    }

    fn commit(&mut self, table: Table, pack: Pack<'_>) -> Result<(), LinkError> {
        let commit = match self.nft.commit(&pack.batch) {
            Ok(commit) => commit,
            Err(error) => return Err(explain(error, &pack)),
        };
        for (chain, rows) in pack.rows {
            // Other programs change base chains as they like.
            if !base_chains::is_base_chain(chain.as_str())
                && let Some(rows) = rows.with_handles(&commit.handles)
            {
                self.rows.insert((table, chain), rows);
            }
        }
        Ok(())
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

    fn rows(&mut self, table: Table, chain: Chain) -> Result<Rows, LinkError> {
        // Taken out: unless the change succeeds we do not know them any more.
        if let Some(rows) = self.link.rows.remove(&(table, chain)) {
            return Ok(rows);
        }
        let (family, name) = (kernel_family(self.link.family), chain.as_str());
        let rules = self.link.nft.rules_of(family, table.as_str(), name);
        Ok(Rows::new(name, rules.map_err(unanswered)?))
    }
}

fn unanswered(error: RequestError) -> LinkError {
    LinkError::Lost(said(error))
}

fn explain(error: BatchError, pack: &Pack<'_>) -> LinkError {
    let message = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let step = match error {
        BatchError::Refused { step, .. } | BatchError::TooLong { step, .. } => Some(step),
        BatchError::Denied(_) | BatchError::Conflict => None,
        BatchError::Unsent { source, .. } | BatchError::Lost(source) => {
            return LinkError::Lost(source);
        }
    };
    let (owner, counts) = step
        .and_then(|step| pack.marks.get(step).copied())
        .unwrap_or_default();
    LinkError::Refused {
        owner: owner.cloned(),
        counts,
        message,
    }
}
