//! Keeps one Service port whose rules are refused from taking all others down.
//!
//! iptables often names the line at fault, and then its owner is left out at once. Where it does
//! not, halves of the Service ports are tried until the culprit is alone. That costs some tries,
//! but only on the bad day.

use std::collections::BTreeMap;

use ferrule_core::desired::Desired;
use ferrule_core::model::PortKey;
use ferrule_kernel::xt::XtError;

use super::apply::{Failure, Iptables};
use super::render;
use super::ruleset::Ruleset;
use super::statics::Ground;

/// More refused Service ports than this are not a few bad ones but a broken machine.
const MOST_REFUSED: usize = 64;

impl Iptables {
    /// Programs all Service ports but those that are refused, which are noted. Returns the number
    /// of steps and what is in the tables now.
    pub(super) fn isolating(
        &mut self,
        desired: &Desired,
        ground: &Ground,
    ) -> Result<(usize, Ruleset), XtError> {
        let mut steps = 0;
        loop {
            let wanted = render::ruleset(desired, ground, &self.refused);
            match self.program(&wanted) {
                Ok(more) => return Ok((steps + more, wanted)),
                Err(failure) if !self.is_worth_another_try(&failure) => return Err(failure.error),
                Err(Failure { error, owner }) => match owner {
                    Some(owner) if !self.refused.contains_key(&owner) => {
                        self.refused.insert(owner, error.to_string());
                    }
                    _ => steps += self.search(desired, ground, &error)?,
                },
            }
        }
    }

    fn is_worth_another_try(&self, failure: &Failure) -> bool {
        matches!(failure.error, XtError::Refused { .. }) && self.refused.len() < MOST_REFUSED
    }

    /// Finds Service ports that are refused, without being told which. Those found are noted.
    fn search(
        &mut self,
        desired: &Desired,
        ground: &Ground,
        error: &XtError,
    ) -> Result<usize, XtError> {
        let all = desired.exposures(self.family);
        let suspects: Vec<PortKey> = all
            .into_iter()
            .map(|exposure| exposure.key.clone())
            .filter(|key| !self.refused.contains_key(key))
            .collect();
        let known = self.refused.len();
        for key in &suspects {
            self.refused.insert(key.clone(), error.to_string());
        }
        // If not even this works, it is nobody's fault.
        let result = self.attempt(desired, ground);
        let result = result.and_then(|steps| Ok(steps + self.admit(desired, ground, &suspects)?));
        match result {
            Ok(_) if self.refused.len() == known => Err(XtError::Refused {
                program: "iptables-restore".to_owned(),
                line: None,
                message: format!("{error}, but each Service by itself was taken"),
            }),
            Err(error) => {
                self.refused.clear();
                Err(error)
            }
            ok => ok,
        }
    }

    /// Admits all of these that can be.
    fn admit(
        &mut self,
        desired: &Desired,
        ground: &Ground,
        suspects: &[PortKey],
    ) -> Result<usize, XtError> {
        let taken: BTreeMap<PortKey, String> = suspects
            .iter()
            .filter_map(|key| self.refused.remove_entry(key))
            .collect();
        match self.attempt(desired, ground) {
            Ok(steps) => Ok(steps),
            Err(error @ XtError::Refused { .. }) => {
                self.refused.extend(taken);
                if let [only] = suspects {
                    self.refused.insert(only.clone(), error.to_string());
                    return Ok(0);
                }
                let (left, right) = suspects.split_at(suspects.len() / 2);
                let steps = self.admit(desired, ground, left)?;
                Ok(steps + self.admit(desired, ground, right)?)
            }
            Err(error) => Err(error),
        }
    }

    fn attempt(&self, desired: &Desired, ground: &Ground) -> Result<usize, XtError> {
        let wanted = render::ruleset(desired, ground, &self.refused);
        self.program(&wanted).map_err(|failure| failure.error)
    }
}
