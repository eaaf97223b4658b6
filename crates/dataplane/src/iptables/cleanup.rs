//! Removes everything that is ours, and what mode ipvs left behind.

use super::apply::Iptables;
use super::layout::LAYOUT;
use crate::xtables::removal::removal;
use crate::{Applied, ApplyError, ipvs};

impl Iptables {
    /// Removes our rules and chains, whichever of the two programs made them. What belongs to
    /// kubelet and to others stays.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.doubt();
        let sent = self
            .tables
            .settle(|there| removal(&[&LAYOUT, &ipvs::LAYOUT], there));
        let sent = sent.map_err(|failure| failure.error)?;
        Ok(Applied { steps: sent.steps })
    }
}
