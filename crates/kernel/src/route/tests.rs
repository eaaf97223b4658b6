//! Interfaces and addresses without a kernel.

use proptest::prelude::*;

use super::*;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::{NLMSG_DONE, Writer};

/// Bytes of `ip address` on a line between two machines, and of a link.
fn sample() -> Vec<u8> {
    let mut writer = Writer::new();
    let start = writer.begin(NEWADDR, 0, 0);
    writer.raw(&[2, 32, 0x80, 0]);
    writer.raw(&7_u32.to_ne_bytes());
    writer.attr(ADDRESS, &[10, 0, 0, 2]);
    writer.attr(ADDRESS_LOCAL, &[10, 0, 0, 1]);
    writer.u32_ne(ADDRESS_FLAGS, 0x280);
    writer.end(start);
    let start = writer.begin(DELLINK, 0, 0);
    writer.raw(&[0; 4]);
    writer.raw(&7_u32.to_ne_bytes());
    writer.raw(&(Link::UP | Link::RUNNING).to_ne_bytes());
    writer.raw(&[0; 4]);
    writer.text(LINK_NAME, "tun0");
    writer.nest(LINK_INFO, |writer| writer.text(LINK_INFO_KIND, "tun"));
    writer.end(start);
    writer.bytes().to_vec()
}

fn address() -> Address {
    Address {
        address: IpAddr::from([10, 0, 0, 1]),
        prefix: 32,
        link: 7,
        scope: 0,
        flags: 0x280,
    }
}

#[test]
fn events_are_read() {
    let link = Link {
        index: 7,
        name: "tun0".to_owned(),
        kind: Some("tun".to_owned()),
        flags: Link::UP | Link::RUNNING,
    };
    assert_eq!(
        read_events(&sample()),
        [Event::Address(address()), Event::LinkGone(link)]
    );
}

#[test]
fn a_captured_address_is_understood() {
    let bytes = crate::wire::tests::bytes(include_str!("../../testdata/address.hex"));
    let [Event::Address(address)] = &read_events(&bytes)[..] else {
        panic!("no address")
    };
    assert_eq!(address.address, "fd00::7".parse::<IpAddr>().unwrap());
    assert_eq!((address.prefix, address.link, address.scope), (64, 1, 0));
    assert_eq!(address.flags & Address::TENTATIVE, 0);
}

#[test]
fn what_is_not_understood_counts_as_missed() {
    let mut bytes = sample();
    bytes.truncate(bytes.len() - 8);
    let events = read_events(&bytes);
    assert_eq!(events[1..], [Event::Missed]);
}

#[test]
fn a_dump_that_was_interrupted_is_begun_again() {
    let script = Script::default();
    let mut route = Route::new(Recorder::new(script.clone()));
    let mut done = Writer::new();
    let start = done.begin(NLMSG_DONE, 0, 0);
    done.raw(&[0; 4]);
    done.end(start);
    script.answer(Answer::Interrupt(vec![sample()]));
    script.answer(Answer::Replay(vec![sample(), done.bytes().to_vec()]));
    assert_eq!(route.addresses().unwrap(), [address()]);
    assert_eq!(script.take_requests().len(), 2);
}

proptest! {
    #[test]
    fn no_damage_makes_reading_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        read_events(&bytes);
    }
}
