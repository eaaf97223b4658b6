//! Hears of changes that others make to our tables.
//!
//! Listening has a price: the kernel then describes every element of every transaction. Begin
//! after the first programming, which is the one large one.

use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::Watch;

use super::names::TABLE;

/// Listens to everybody but ourselves.
#[derive(Debug)]
pub struct Listener {
    watch: Watch,
    own: Vec<u32>,
}

impl Listener {
    /// Listens in the network namespace of the calling thread, from now on. `own` are the
    /// [`Nftables::port`](super::Nftables::port)s whose changes are expected.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(own: Vec<u32>) -> io::Result<Self> {
        let watch = Watch::open()?;
        Ok(Self { watch, own })
    }

    /// The families whose table is not as we left it; none if nothing happens for so long.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn next(&mut self, patience: Duration) -> io::Result<Vec<Family>> {
        let changed = self.watch.others(TABLE, &self.own, patience)?;
        Ok(changed
            .into_iter()
            .map(|family| match family {
                ferrule_kernel::Family::V4 => Family::V4,
                ferrule_kernel::Family::V6 => Family::V6,
            })
            .collect())
    }
}
