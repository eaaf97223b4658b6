//! Notices external changes to our rules by the kernel's notifications.
//!
//! Listening has a price: the kernel then describes every element of every transaction. Open
//! listeners after the first programming of all families, which are the large transactions.

use std::fmt;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::{Change, Event, Watch};

use crate::{Cadence, Watcher, kernel_family};

/// Listens to everybody but the dataplane itself.
pub struct Listener {
    family: Family,
    /// The port of the dataplane's own socket.
    own: u32,
    tables: &'static [&'static str],
    concerns: Box<dyn Fn(&Change) -> bool + Send>,
    /// `None` after a failure: what happened since was noticed by nobody.
    watch: Option<Watch>,
}

impl Listener {
    /// Listens in the network namespace of the calling thread, from now on, or from the first
    /// [`Watcher::changed`] that succeeds. `own` is the port of the socket whose changes are
    /// expected. Of changes to these tables those are reported that `concerns` says yes to.
    pub fn open(
        family: Family,
        own: u32,
        tables: &'static [&'static str],
        concerns: impl Fn(&Change) -> bool + Send + 'static,
    ) -> Self {
        Self {
            family,
            own,
            tables,
            concerns: Box::new(concerns),
            watch: Watch::external(own).ok(),
        }
    }
}

impl Watcher for Listener {
    fn cadence(&self) -> Cadence {
        Cadence::Notified
    }

    fn changed(&mut self, timeout: Duration) -> io::Result<bool> {
        let Some(watch) = &mut self.watch else {
            self.watch = Some(Watch::external(self.own)?);
            return Ok(true);
        };
        let here = kernel_family(self.family);
        let events = watch.next_in(timeout, |family, table| {
            family == here && self.tables.contains(&table)
        });
        match events {
            Ok(events) => Ok(events.iter().any(|event| match event {
                Event::Missed => true,
                Event::Change(change) => (self.concerns)(change),
            })),
            Err(error) => {
                self.watch = None;
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("family", &self.family)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}
