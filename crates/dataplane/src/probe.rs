//! Asks the kernel whether it can do what a mode writes, and writes nothing.
//!
//! In: a transaction. Out: what the kernel lacks for it, if anything. The transaction gets one more
//! step, which cannot succeed: the kernel looks at every step, loads the modules that it needs, and
//! undoes them all. There is no new generation, and no notification.

use std::io;

use ferrule_kernel::nft::{Batch, BatchError, Nft};
use ferrule_kernel::socket::Transport;

/// The name of what exists only within the transaction.
pub const PROBE: &str = "ferrule-probe";

/// What nobody has a chain for.
const NOWHERE: &str = "ferrule-nowhere";

/// Makes sure that the kernel could take this transaction.
///
/// # Errors
/// `Unsupported`: it lacks something. Other failures say nothing about what the kernel can do: the
/// first sync meets them again, and is retried.
pub fn probe<T: Transport>(nft: &mut Nft<T>, mut batch: Batch) -> io::Result<()> {
    let last = batch.flush_chain(NOWHERE);
    match nft.commit(&batch) {
        Err(BatchError::Refused { step, .. }) if step == last => Ok(()),
        Err(error) if error.is_unsupported() => {
            Err(io::Error::new(io::ErrorKind::Unsupported, error))
        }
        _ => Ok(()),
    }
}
