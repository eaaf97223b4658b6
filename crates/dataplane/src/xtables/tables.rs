//! How the tables are spoken to: directly where that is possible, otherwise by iptables' programs.
//!
//! In: a function that says what to write, given what is there. Out: what it took, or a
//! [`Failure`] that says whose fault it is, as far as that can be known.

use std::collections::BTreeMap;
use std::io;

use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::xt::{Flavour, Table, Xt, XtError};

use super::counts::Census;
use super::document::Document;
use super::installed::{Installed, Inventory};
use super::layout::Layout;
use super::link::{Link, Snag};

/// What the direct way is called where a program would be named.
const DIRECTLY: &str = "nf_tables";

/// The tables of one family.
#[derive(Debug)]
pub struct Tables {
    family: Family,
    layout: &'static Layout,
    xt: Xt,
    /// The direct way, in the nft flavour.
    link: Option<Link>,
}

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// How many steps.
    pub steps: usize,
    /// Rules among them.
    pub rules: Census,
}

impl Sent {
    fn of(document: &Document) -> Self {
        Self {
            steps: document.len(),
            rules: Census::of_document(document),
        }
    }
}

/// What became of an attempt that failed.
#[derive(Debug)]
pub struct Failure {
    /// What was said.
    pub error: XtError,
    /// Whose line was at fault, if it is known.
    pub owner: Option<PortKey>,
    /// Rules cannot use counters.
    pub counters: bool,
}

impl Failure {
    /// A failure before anything was written.
    pub const fn unwritten(error: XtError) -> Self {
        Self {
            error,
            owner: None,
            counters: false,
        }
    }

    fn of_programs(error: XtError, document: &Document) -> Self {
        let (owner, counters) = match &error {
            XtError::Refused {
                line: Some(line), ..
            } => (document.owner(*line).cloned(), document.counts(*line)),
            _ => (None, false),
        };
        Self {
            error,
            owner,
            counters,
        }
    }

    fn of_link(snag: Snag) -> Self {
        let program = DIRECTLY.to_owned();
        let refused = |message| XtError::Refused {
            program: DIRECTLY.to_owned(),
            line: None,
            message,
        };
        match snag {
            Snag::Refused {
                owner,
                counts,
                message,
            } => Self {
                error: refused(message),
                owner,
                counters: counts,
            },
            Snag::Beyond | Snag::Changed(_) => Self::unwritten(refused(snag.to_string())),
            Snag::Lost(source) => Self::unwritten(XtError::Unusable { program, source }),
        }
    }
}

impl Tables {
    /// The tables in the network namespace of the calling thread.
    pub fn new(family: Family, layout: &'static Layout, xt: Xt) -> Self {
        let link = match xt.flavour() {
            Flavour::Nft => Link::open(family, layout).ok(),
            Flavour::Legacy => None,
        };
        Self {
            family,
            layout,
            xt,
            link,
        }
    }

    /// The same, spoken to by programs alone: in whichever namespace the calling thread is.
    pub fn by_programs(&self) -> Self {
        Self {
            family: self.family,
            layout: self.layout,
            xt: self.xt.clone(),
            link: None,
        }
    }

    /// The programs.
    pub const fn xt(&self) -> &Xt {
        &self.xt
    }

    /// The port by which notifications name our changes; `None` if programs make them.
    pub fn port(&self) -> Option<u32> {
        self.link.as_ref().map(Link::port)
    }

    /// Looks at what is there and writes what `plan` says.
    pub fn settle(&mut self, plan: impl Fn(&dyn Inventory) -> Document) -> Result<Sent, Failure> {
        let Some(link) = &mut self.link else {
            return self.settle_by_programs(plan);
        };
        let mut result = settle_directly(link, &plan);
        if let Err(Snag::Refused { owner: None, .. } | Snag::Changed(_)) = result {
            // Somebody else may have changed something after we had looked.
            result = settle_directly(link, &plan);
        }
        match result {
            Ok(sent) => Ok(sent),
            // Another version of iptables may know how, or at least say why not.
            Err(
                Snag::Beyond
                | Snag::Refused {
                    owner: None,
                    counts: false,
                    ..
                },
            ) => self.settle_by_programs(plan),
            Err(snag) => Err(Failure::of_link(snag)),
        }
    }

    fn settle_by_programs(
        &self,
        plan: impl Fn(&dyn Inventory) -> Document,
    ) -> Result<Sent, Failure> {
        let mut texts = BTreeMap::new();
        for table in Table::ALL {
            match self.xt.save(table) {
                Ok(saved) => drop(texts.insert(table, saved)),
                Err(XtError::Missing { .. }) if self.layout.can_do_without(table) => {}
                Err(error) => return Err(Failure::unwritten(error)),
            }
        }
        let mut installed = Installed::new(self.family);
        for (table, text) in &texts {
            installed.read(*table, text);
        }
        let mut document = plan(&installed);
        document.retain(|table| texts.contains_key(&table));
        self.restore(&document)
    }

    /// Makes these changes.
    pub fn send(&mut self, document: &Document) -> Result<Sent, Failure> {
        match &mut self.link {
            None => self.restore(document),
            Some(link) => match link.send(document, None) {
                Ok(()) => Ok(Sent::of(document)),
                Err(snag) => Err(Failure::of_link(snag)),
            },
        }
    }

    fn restore(&self, document: &Document) -> Result<Sent, Failure> {
        if document.len() > 0 {
            let result = self.xt.restore(&document.text());
            result.map_err(|error| Failure::of_programs(error, document))?;
        }
        Ok(Sent::of(document))
    }
}

fn settle_directly(
    link: &mut Link,
    plan: impl Fn(&dyn Inventory) -> Document,
) -> Result<Sent, Snag> {
    let listing = link.list()?;
    let document = plan(&listing);
    link.send(&document, Some(&listing))?;
    Ok(Sent::of(&document))
}

/// The machine's settings could not be read.
pub fn unreadable(source: io::Error) -> Failure {
    Failure::unwritten(XtError::Unusable {
        program: "the machine's settings".to_owned(),
        source,
    })
}
