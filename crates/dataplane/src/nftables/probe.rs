//! Whether the kernel can do what this mode writes for a family.

use std::io;
use std::num::NonZeroU32;

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_kernel::nft::{Batch, Nft, Table};
use ferrule_kernel::socket::Transport;

use super::batch::put;
use super::create;
use super::diff::{RenderContext, add_pick};
use super::names::{Draw, MatchKey, Pick};
use super::{Nftables, Options};
use crate::probe::{PROBE, probe};
use crate::{kernel_family, said};

/// Opens families that the kernel can program.
#[derive(Debug)]
pub struct Opener {
    options: Options,
    /// Whether the kernel lacks nothing for any family, once it was asked.
    all: Option<bool>,
}

impl Opener {
    /// Nothing is asked yet.
    pub const fn new(options: Options) -> Self {
        Self { options, all: None }
    }

    /// Opens a family as [`Nftables::open`] does, if the kernel can do what this mode writes for it.
    ///
    /// # Errors
    /// `Unsupported`: it lacks something. Otherwise see [`Nftables::open`].
    pub fn open(&mut self, family: Family) -> io::Result<Nftables> {
        let mut nft = Nft::open()?;
        nft.generation().map_err(said)?;
        self.check(&mut nft, family)?;
        Ok(Nftables::new(family, self.options, nft))
    }

    /// Undoing a transaction takes the kernel more than ten milliseconds, all other writers of rules
    /// waiting. So all families are asked about together, and one by one only if something is lacking.
    fn check<T: Transport>(&mut self, nft: &mut Nft<T>, family: Family) -> io::Result<()> {
        let all = self
            .all
            .get_or_insert_with(|| probe(nft, everything(Family::ALL, self.options)).is_ok());
        if *all {
            return Ok(());
        }
        probe(nft, everything([family], self.options))
    }
}

/// What a cluster without Services needs, and the chain of a Service with endpoints, in tables that
/// no packet enters.
fn everything(families: impl IntoIterator<Item = Family>, options: Options) -> Batch {
    let table = Table {
        flags: Table::DORMANT,
        ..Table::new(PROBE)
    };
    let mut batch = Batch::new(kernel_family(Family::V4), PROBE);
    for family in families {
        let kernel = kernel_family(family);
        batch.go_on_in(kernel);
        let mut add = |step| put(&mut batch, &step, kernel, &table);
        let nothing = Desired::new(Settings::default());
        create::create([], nothing.facts(family), family, options, &mut add);
        let context = RenderContext::new(family, options);
        let pick = Pick {
            match_key: MatchKey::Address,
            first: 0,
            draw: Draw::up_to(NonZeroU32::MIN),
            masquerade: true,
        };
        add_pick(&pick, context).into_iter().for_each(add);
    }
    batch
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::recorder::{Answer, Recorder, Script};
    use ferrule_testbed::in_namespace;

    use super::*;

    /// The outcome when the kernel refuses this step, and what it was asked.
    fn outcome(step: impl FnOnce(usize) -> usize, errno: i32) -> io::Result<()> {
        let script = Script::default();
        let mut nft = Nft::new(Recorder::new(script.clone()));
        let (family, options) = (Family::V6, Options::default());
        let first = everything([Family::V4], options).len();
        let last = everything([family], options).len();
        // The beginning of the batch is a message as well.
        let message = 1 + step(last);
        let both = first + message;
        for message in [both, message] {
            script.answer(Answer::Refuse { message, errno });
        }
        Opener::new(options).check(&mut nft, family)
    }

    #[test]
    fn core_041_a_family_whose_nat_the_kernel_lacks_is_found_out_by_asking() {
        for errno in [
            nix::libc::ENOENT,
            nix::libc::EOPNOTSUPP,
            nix::libc::EAFNOSUPPORT,
        ] {
            let error = outcome(|_| 6, errno).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("nat-prerouting"), "{error}");
        }
        // No tables of this family at all.
        let error = outcome(|_| 0, nix::libc::EOPNOTSUPP).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    }

    #[test]
    fn core_041_a_failure_that_may_pass_is_no_lack() {
        for errno in [nix::libc::ENOMEM, nix::libc::EINTR, nix::libc::EBUSY] {
            outcome(|_| 6, errno).unwrap();
        }
        // The step that cannot succeed.
        outcome(|last| last, nix::libc::ENOENT).unwrap();
    }

    #[test]
    fn core_041_asking_leaves_nothing_in_the_kernel() {
        for family in Family::ALL {
            in_namespace(move || {
                let mut nft = Nft::open().unwrap();
                let before = nft.generation().unwrap();
                let mut opener = Opener::new(Options::default());
                opener.check(&mut nft, family).unwrap();
                assert_eq!(opener.all, Some(true));
                // Also when it is asked about this family alone.
                opener.all = Some(false);
                opener.check(&mut nft, family).unwrap();
                assert_eq!(nft.generation().unwrap(), before);
                assert_eq!(ferrule_testbed::run("nft", &["list", "ruleset"]), "");
            });
        }
    }
}
