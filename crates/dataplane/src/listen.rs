//! Notices external changes to our rules by the kernel's notifications.
//!
//! Listening has a price: the kernel then describes every element of every transaction. Open
//! listeners after the first programming of all families, which are the large transactions. What
//! was changed between the programming and the listening shows in the count of transactions.

use std::fmt;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::{Change, Event, Generation, Mark, Nft, Object, Watch, Writers};
use ferrule_kernel::socket::Transport;

use crate::{Cadence, ExternalChange, Process, Watcher, kernel_family};

/// Listens to everybody but the dataplanes themselves.
pub struct Listener {
    family: Family,
    /// The sockets whose changes are expected.
    writers: Writers,
    tables: &'static [&'static str],
    concerns: Box<dyn Fn(&Change) -> bool + Send>,
    /// `None` after a failure: what happened since was noticed by nobody.
    watch: Option<Watch>,
    /// Something may have been changed before anybody listened.
    missed: bool,
    /// A change was reported whose transaction has not ended yet. Its end names the process.
    unsigned: bool,
}

impl Listener {
    /// Listens in the network namespace of the calling thread, from now on, or from the first
    /// [`Watcher::changed`] that succeeds. Changes by this writer and those that it belongs to are
    /// expected. Of changes to these tables those are reported that `concerns` says yes to.
    ///
    /// `since` is the state of all rules that the dataplane knows; if another process changed any
    /// after it, that is the first change.
    pub fn open<T: Transport>(
        family: Family,
        writer: &mut Nft<T>,
        since: Option<Mark>,
        tables: &'static [&'static str],
        concerns: impl Fn(&Change) -> bool + Send + 'static,
    ) -> Self {
        let watch = Watch::external(writer.writers()).ok();
        // Only now: what comes after this is notified.
        let known = since.is_some_and(|since| writer.is_since(since).unwrap_or(false));
        Self {
            family,
            writers: writer.writers().clone(),
            tables,
            concerns: Box::new(concerns),
            missed: watch.is_some() && !known,
            watch,
            unsigned: false,
        }
    }

    /// What these events amount to.
    fn judge(&mut self, events: Vec<Event>) -> Option<ExternalChange> {
        let mut found = None;
        for event in events {
            match event {
                // Whose it was is lost, too.
                Event::Missed => found = Some(ExternalChange::default()),
                Event::Change(change) => match change.object {
                    Object::Generation(generation) if self.unsigned => {
                        self.unsigned = false;
                        let process = process(generation);
                        found = Some(ExternalChange { process });
                    }
                    Object::Generation(_) => {}
                    _ if (self.concerns)(&change) => {
                        self.unsigned = true;
                        found.get_or_insert_default();
                    }
                    _ => {}
                },
            }
        }
        found
    }
}

fn process(generation: Generation) -> Option<Process> {
    Some(Process {
        id: generation.process?,
        name: generation.process_name?,
    })
}

impl Watcher for Listener {
    fn cadence(&self) -> Cadence {
        Cadence::Notified
    }

    fn changed(&mut self, timeout: Duration) -> io::Result<Option<ExternalChange>> {
        if std::mem::take(&mut self.missed) {
            return Ok(Some(ExternalChange::default()));
        }
        let Some(watch) = &mut self.watch else {
            self.watch = Some(Watch::external(&self.writers)?);
            return Ok(Some(ExternalChange::default()));
        };
        let here = kernel_family(self.family);
        let events = watch.next_in(timeout, |family, table| {
            family == here && self.tables.contains(&table)
        });
        match events {
            Ok(events) => Ok(self.judge(events)),
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
            .field("writers", &self.writers)
            .finish_non_exhaustive()
    }
}
