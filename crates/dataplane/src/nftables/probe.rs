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

/// Opens a family as [`Nftables::open`] does, if the kernel can do what this mode writes for it.
///
/// # Errors
/// `Unsupported`: it lacks something. Otherwise see [`Nftables::open`].
pub fn open_supported(family: Family, options: Options) -> io::Result<Nftables> {
    let mut nft = Nft::open()?;
    nft.generation().map_err(said)?;
    check(&mut nft, family, options)?;
    Ok(Nftables::new(family, options, nft))
}

fn check<T: Transport>(nft: &mut Nft<T>, family: Family, options: Options) -> io::Result<()> {
    probe(nft, everything(family, options))
}

/// What a cluster without Services needs, and the chain of a Service with endpoints, in a table
/// that no packet enters.
fn everything(family: Family, options: Options) -> Batch {
    let kernel = kernel_family(family);
    let table = Table {
        flags: Table::DORMANT,
        ..Table::new(PROBE)
    };
    let mut batch = Batch::new(kernel, PROBE);
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
        let last = everything(family, options).len();
        // The beginning of the batch is a message as well.
        let message = 1 + step(last);
        script.answer(Answer::Refuse { message, errno });
        check(&mut nft, family, options)
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
                check(&mut nft, family, Options::default()).unwrap();
                assert_eq!(nft.generation().unwrap(), before);
                assert_eq!(ferrule_testbed::run("nft", &["list", "ruleset"]), "");
            });
        }
    }
}
