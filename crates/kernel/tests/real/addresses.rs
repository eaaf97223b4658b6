//! Addresses that an interface is given and loses again, and interfaces that are created.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::route::{Link, Route};

use crate::support::{in_namespace, run};

/// So many of each family.
const MANY: u32 = 600;

fn many() -> Vec<IpAddr> {
    let v4 = (0..MANY).map(|n| Ipv4Addr::from(0x0a60_0000 + n).into());
    let v6 = (0..MANY).map(|n| Ipv6Addr::from((0xfd00_0096 << 96) + u128::from(n)).into());
    v4.chain(v6).collect()
}

fn find(route: &mut Route, name: &str) -> Option<Link> {
    let links = route.links().unwrap();
    links.into_iter().find(|link| link.name == name)
}

/// The addresses of an interface, each with its prefix.
fn of(route: &mut Route, link: &Link) -> Vec<(IpAddr, u8)> {
    // The kernel itself may still be changing addresses of other interfaces.
    let all = loop {
        match route.addresses() {
            Err(error) if error.is_interrupted() => {}
            all => break all.unwrap(),
        }
    };
    let those = all.iter().filter(|address| address.link == link.index);
    let mut those: Vec<_> = those.map(|a| (a.address, a.prefix)).collect();
    those.sort_unstable();
    those
}

fn alone(addresses: &[IpAddr]) -> Vec<(IpAddr, u8)> {
    let with_prefix = |address: &IpAddr| (*address, if address.is_ipv4() { 32 } else { 128 });
    addresses.iter().map(with_prefix).collect()
}

#[test]
fn many_addresses_come_and_go_at_once_on_a_link_that_is_down() {
    in_namespace(|| {
        run("ip", &["link", "add", "vips", "type", "veth"]);
        let mut route = Route::open().unwrap();
        let link = find(&mut route, "vips").unwrap();
        let many = many();
        assert!(route.add_addresses(link.index, &many).unwrap().is_empty());
        assert_eq!(of(&mut route, &link), alone(&many));
        // What is there already may be added again, and what is gone deleted again.
        assert!(route.add_addresses(link.index, &many).unwrap().is_empty());
        let (kept, gone) = many.split_at(7);
        for _ in 0..2 {
            assert!(route.delete_addresses(link.index, gone).unwrap().is_empty());
            assert_eq!(of(&mut route, &link), alone(kept));
        }
        assert_eq!(find(&mut route, "vips").unwrap().flags & Link::UP, 0);
    });
}

#[test]
fn an_address_that_is_refused_does_not_harm_the_others() {
    in_namespace(|| {
        run("ip", &["link", "add", "vips", "type", "veth"]);
        let mut route = Route::open().unwrap();
        let link = find(&mut route, "vips").unwrap();
        // One for many hosts at once belongs to none.
        let addresses: [IpAddr; 3] =
            ["fd00::1", "ff02::1", "fd00::2"].map(|text| text.parse().unwrap());
        let refused = route.add_addresses(link.index, &addresses).unwrap();
        let indices: Vec<_> = refused.iter().map(|refused| refused.index).collect();
        assert_eq!(indices, [1]);
        assert_eq!(of(&mut route, &link), alone(&[addresses[0], addresses[2]]));
        // An interface that does not exist has no addresses to lose.
        let refused = route.delete_addresses(4711, &addresses[..1]).unwrap();
        assert!(matches!(refused[0].error, RequestError::Refused { .. }));
    });
}

#[test]
fn a_dummy_interface_is_created_or_the_error_says_that_there_are_none() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        match route.create_dummy("vips") {
            Ok(created) => {
                assert!(created);
                let link = find(&mut route, "vips").unwrap();
                assert_eq!(link.kind.as_deref(), Some("dummy"));
                assert_eq!(link.flags & Link::UP, 0);
                assert!(!route.create_dummy("vips").unwrap(), "it is there already");
            }
            Err(RequestError::Refused { message, source }) => {
                assert_eq!(source.kind(), io::ErrorKind::Unsupported);
                assert_eq!(message.as_deref(), Some("no interfaces of kind dummy"));
                assert_eq!(find(&mut route, "vips"), None);
            }
            Err(error) => panic!("{error:?}"),
        }
    });
}
