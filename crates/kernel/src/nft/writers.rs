//! The sockets by which one program writes rules, so that it can tell external changes from its own.
//!
//! Notifications name the socket that asked for a change; generations only count transactions. So
//! the sockets are known by their ports, and their transactions are counted.

use std::sync::{Arc, Mutex, PoisonError};

/// The sockets of one program that write rules. Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Writers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ports: Vec<u32>,
    commits: u32,
}

/// A state of all rules that is known: see [`Nft::is_since`](super::Nft::is_since).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub(super) generation: u32,
    /// Transactions of the program until then.
    pub(super) commits: u32,
}

impl Writers {
    /// One more socket, which lives as long as the group.
    pub(super) fn add(&self, port: u32) {
        self.with(|state| state.ports.push(port));
    }

    /// One more transaction.
    pub(super) fn committed(&self) {
        self.with(|state| state.commits = state.commits.wrapping_add(1));
    }

    /// Transactions so far.
    pub(super) fn commits(&self) -> u32 {
        self.with(|state| state.commits)
    }

    /// The ports of all sockets.
    pub(super) fn ports(&self) -> Vec<u32> {
        self.with(|state| state.ports.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Mark {
    /// Whether every transaction since `self` was one of the program's own.
    pub(super) const fn leads_to(self, now: Self) -> bool {
        let made = now.commits.wrapping_sub(self.commits);
        // The count of generations leaves out 0 when it starts again, once in years: then this says
        // no, which costs a look.
        now.generation.wrapping_sub(self.generation) == made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mark(generation: u32, commits: u32) -> Mark {
        Mark {
            generation,
            commits,
        }
    }

    #[test]
    fn only_own_transactions_explain_a_generation() {
        let known = mark(10, 3);
        for (now, explained) in [
            (mark(10, 3), true),
            (mark(12, 5), true),
            (mark(11, 3), false),
            (mark(13, 5), false),
            (mark(2, 3), false),
        ] {
            assert_eq!(known.leads_to(now), explained, "{now:?}");
        }
    }
}
