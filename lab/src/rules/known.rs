//! Differences between the rules of ferrule and kube-proxy that are meant. Each one names its row
//! in docs/parity.md, which says why.

use super::listing::Listing;
use crate::world::WorldKey;

/// The listing without what is different on purpose.
pub fn without(listing: Listing, _world: &WorldKey) -> Listing {
    listing
}
