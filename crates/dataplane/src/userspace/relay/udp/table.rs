//! The associations of a lane, and which of them has been idle for longest.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::Client;
use super::association::Association;

/// Associations by client.
#[derive(Default)]
pub(super) struct Table {
    clients: HashMap<Client, Entry>,
    /// By when they were used, as far as is known: an association that was used since is put where
    /// it belongs when it is come across.
    order: BTreeMap<(u64, u64), Client>,
    next: u64,
}

struct Entry {
    association: Arc<Association>,
    task: Ending,
    /// Its place in the order.
    stamp: u64,
}

/// Ends a task when dropped.
struct Ending(AbortHandle);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An association that is in the table no more. Its task ends with this.
pub(super) struct Ended {
    _task: Ending,
    _association: Arc<Association>,
}

impl Table {
    /// A number that no association had before.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(super) fn get(&self, client: &Client) -> Option<Arc<Association>> {
        let entry = self.clients.get(client)?;
        Some(Arc::clone(&entry.association))
    }

    pub(super) fn insert(&mut self, association: Arc<Association>, task: AbortHandle) {
        let stamp = association.last_used();
        let client = association.client;
        self.order.insert((stamp, association.number), client);
        let entry = Entry {
            association,
            task: Ending(task),
            stamp,
        };
        if let Some(former) = self.clients.insert(client, entry) {
            self.order
                .remove(&(former.stamp, former.association.number));
        }
    }

    /// Removes the client's association, if it is still this one.
    pub(super) fn remove(&mut self, client: &Client, number: u64) -> Option<Ended> {
        let entry = self.clients.get(client)?;
        if entry.association.number != number {
            return None;
        }
        let entry = self.clients.remove(client)?;
        self.order.remove(&(entry.stamp, number));
        Some(Ended {
            _task: entry.task,
            _association: entry.association,
        })
    }

    /// Removes the one that has been idle for longest. Returns whether there was one.
    pub(super) fn evict_idlest(&mut self) -> bool {
        while let Some(((stamp, number), client)) = self.order.pop_first() {
            let Some(entry) = self.clients.get_mut(&client) else {
                continue;
            };
            let used = entry.association.last_used();
            if used > stamp {
                entry.stamp = used;
                self.order.insert((used, number), client);
                continue;
            }
            return self.clients.remove(&client).is_some();
        }
        false
    }
}
