//! The tables of one family, written directly where that is possible, otherwise by iptables' programs.
//!
//! In: a function from what is installed to what to write. Out: what was sent, or a [`Failure`] that
//! names the Service port at fault, as far as that is known.

use ferrule_core::model::Family;
use ferrule_kernel::xt::{Flavour, Table, Version, Xt, XtError};

use super::canary::Canary;
use super::counts::RuleCounts;
use super::document::Document;
use super::error::{Failure, LinkError};
use super::installed::{Inventory, Saved};
use super::layout::Layout;
use super::link::Link;
use crate::{Watcher, Writers};

/// The first iptables that lists marks and ports as `nf_tables` expressions. Older ones list rules
/// written directly without them, and whoever saves and restores rules by them loses both.
const DIRECTLY_SINCE: (u32, u32, u32) = (1, 8, 8);

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
    pub rules: RuleCounts,
}

impl Sent {
    fn of(document: &Document) -> Self {
        Self {
            steps: document.len(),
            rules: RuleCounts::of_document(document),
        }
    }
}

impl Tables {
    /// The tables in the network namespace of the calling thread.
    pub fn new(family: Family, layout: &'static Layout, xt: Xt) -> Self {
        let directly = can_write_directly(xt.version());
        let link = directly.then(|| Link::open(family, layout).ok()).flatten();
        Self {
            family,
            layout,
            xt,
            link,
        }
    }

    /// The same, read and written by programs alone, in the network namespace of the calling thread.
    pub fn by_programs(&self) -> Self {
        Self {
            family: self.family,
            layout: self.layout,
            xt: self.xt.clone(),
            link: None,
        }
    }

    /// Writes as one of these writers.
    pub fn join(&mut self, writers: &Writers) {
        if let Some(link) = &mut self.link {
            link.join(writers);
        }
    }

    /// The programs.
    pub const fn xt(&self) -> &Xt {
        &self.xt
    }

    /// Watchers for external changes to the tables.
    pub fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        // Where the kernel sends no notifications.
        let (family, layout) = (self.family, self.layout);
        let canary = Canary::new(family, layout, self.xt.clone(), self.link.is_some());
        let mut watchers: Vec<Box<dyn Watcher>> = vec![Box::new(canary)];
        if let Some(link) = &mut self.link {
            watchers.push(Box::new(link.listen()));
        }
        watchers
    }

    /// Reads what is installed and writes what `plan` makes of it.
    pub fn reconcile(
        &mut self,
        plan: impl Fn(&dyn Inventory) -> Document,
    ) -> Result<Sent, Failure> {
        let Some(link) = &mut self.link else {
            return self.reconcile_by_programs(plan);
        };
        let mut result = reconcile_directly(link, &plan);
        if let Err(LinkError::Refused { owner: None, .. } | LinkError::Changed(_)) = result {
            // Another process may have changed something after we had read it.
            result = reconcile_directly(link, &plan);
        }
        match result {
            Ok(sent) => Ok(sent),
            // Another version of iptables may know how, or at least say why not.
            Err(
                LinkError::Encoding
                | LinkError::Refused {
                    owner: None,
                    counts: false,
                    ..
                },
            ) => self.reconcile_by_programs(plan),
            Err(error) => Err(error.into()),
        }
    }

    /// What is asked of what the kernel itself lists; `None` where it cannot be asked directly.
    pub fn ask<R>(&mut self, question: impl FnOnce(&dyn Inventory) -> R) -> Option<R> {
        let listing = self.link.as_mut()?.list().ok()?;
        Some(question(&listing))
    }

    /// What is in the tables, as programs print it.
    ///
    /// # Errors
    /// See [`XtError`].
    pub fn saved(&self) -> Result<Saved, XtError> {
        let mut saved = Saved::default();
        for table in Table::ALL {
            saved.add(self.layout, table, self.xt.save(table))?;
        }
        Ok(saved)
    }

    fn reconcile_by_programs(
        &self,
        plan: impl Fn(&dyn Inventory) -> Document,
    ) -> Result<Sent, Failure> {
        let saved = self.saved().map_err(Failure::unwritten)?;
        let mut document = plan(&saved.installed(self.family));
        document.retain(|table| saved.has(table));
        self.restore(&document)
    }

    /// Makes these changes.
    pub fn send(&mut self, document: &Document) -> Result<Sent, Failure> {
        match &mut self.link {
            None => self.restore(document),
            Some(link) => match link.send(document, None) {
                Ok(()) => Ok(Sent::of(document)),
                Err(error) => Err(error.into()),
            },
        }
    }

    fn restore(&self, document: &Document) -> Result<Sent, Failure> {
        if document.len() > 0 {
            let result = self.xt.restore(&document.text());
            result.map_err(|error| Failure::of_program(error, document))?;
        }
        Ok(Sent::of(document))
    }
}

fn reconcile_directly(
    link: &mut Link,
    plan: impl Fn(&dyn Inventory) -> Document,
) -> Result<Sent, LinkError> {
    let listing = link.list()?;
    let document = plan(&listing);
    link.send(&document, Some(&listing))?;
    Ok(Sent::of(&document))
}

/// Whether the installed iptables understands rules that we write to `nf_tables` ourselves.
fn can_write_directly(version: &Version) -> bool {
    let (major, minor, patch) = DIRECTLY_SINCE;
    version.flavour == Flavour::Nft && version.at_least(major, minor, patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_directly_only_where_iptables_can_list_them() {
        for (version, directly) in [
            ("iptables v1.8.4 (nf_tables)", false),
            ("iptables v1.8.7 (nf_tables)", false),
            ("iptables v1.8.8 (nf_tables)", true),
            ("ip6tables v1.8.9 (nf_tables)", true),
            ("iptables v1.8.11 (nf_tables)", true),
            ("iptables v1.8.9 (legacy)", false),
        ] {
            let version = Version::parse(version);
            assert_eq!(can_write_directly(&version), directly, "{version:?}");
        }
    }
}
