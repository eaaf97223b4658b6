//! Pipes for streams, kept per thread.
//!
//! A stream takes one while it has data in it, so idle connections have none.

use std::cell::RefCell;

use ferrule_kernel::inet::pipe::Pipe;

/// What a pipe holds: as much as goes through one system call.
const SIZE: usize = 256 * 1024;

/// A smaller one, because this user's share is used up, is worse than copying.
const SMALLEST: usize = 64 * 1024;

/// Kept per thread for the next stream.
const KEPT: usize = 32;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// An empty pipe; `None` when there is no more to be had.
pub(super) fn take() -> Option<Pipe> {
    let pooled = POOL.with_borrow_mut(Vec::pop);
    pooled.or_else(|| {
        let pipe = Pipe::open(SIZE).ok()?;
        (pipe.size() >= SMALLEST).then_some(pipe)
    })
}

/// Takes an empty pipe back.
pub(super) fn give_back(pipe: Pipe) {
    POOL.with_borrow_mut(|pool| {
        if pool.len() < KEPT {
            pool.push(pipe);
        }
    });
}
