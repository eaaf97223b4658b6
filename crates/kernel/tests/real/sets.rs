//! Sets, also as `ipset` sees them.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};

use ferrule_kernel::Family;
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::ipset::{Entry, IpPort, Ipset, Network, Set, Type};
use ferrule_kernel::socket::Protocol;

use crate::support::{Tap, captured, in_namespace, leave_out, pick, run};

const TCP: u8 = 6;

fn set(name: &str, kind: Type, family: Family) -> Set {
    Set {
        name: name.to_owned(),
        kind,
        family,
        max_entries: 100_000,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ip_port(address: &str, protocol: u8, port: u16) -> IpPort {
    IpPort {
        address: ip(address),
        protocol,
        port,
    }
}

/// Entries of a type, in their order.
fn entries(kind: Type, family: Family) -> Vec<Entry> {
    let (one, two, net, wide) = match family {
        Family::V4 => ("10.96.0.1", "198.51.100.7", "203.0.113.0", 24),
        Family::V6 => ("fd00:96::1", "fd00:96::7", "2001:db8::", 32),
    };
    let narrow = if family == Family::V4 { 32 } else { 128 };
    let network = |address, prefix| Network::new(ip(address), prefix).unwrap();
    match kind {
        Type::HashIp => vec![Entry::Ip(ip(one)), Entry::Ip(ip(two))],
        Type::HashIpPort => vec![
            Entry::IpPort(ip_port(one, TCP, 80)),
            Entry::IpPort(ip_port(one, 17, 53)),
            Entry::IpPort(ip_port(two, 132, 99)),
        ],
        Type::HashIpPortIp => vec![
            Entry::IpPortIp(ip_port(one, TCP, 80), ip(one)),
            Entry::IpPortIp(ip_port(two, TCP, 80), ip(one)),
        ],
        Type::HashIpPortNet => vec![
            Entry::IpPortNet(ip_port(one, TCP, 80), network(net, wide)),
            Entry::IpPortNet(ip_port(two, TCP, 80), network(two, narrow)),
        ],
        Type::BitmapPort => vec![Entry::Port(80), Entry::Port(30080), Entry::Port(65535)],
    }
}

/// The lines that `ipset` prints about what is in a set.
fn printed(name: &str) -> Vec<String> {
    let text = run("ipset", &["save", name]);
    let prefix = format!("add {name} ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let mut lines: Vec<_> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Runs a test, unless this kernel has no sets and that is no failure here.
fn with_sets(test: impl FnOnce(&mut Ipset) + Send) {
    in_namespace(|| {
        let mut sets = Ipset::open().unwrap().unwrap();
        if sets.revisions(Type::HashIp, Family::V4).unwrap().is_none() {
            leave_out("this kernel has no sets");
            return;
        }
        test(&mut sets);
    });
}

#[test]
fn ipvs_027_every_type_of_set_is_created_filled_listed_emptied_and_destroyed() {
    with_sets(|sets| {
        for kind in Type::ALL {
            for family in [Family::V4, Family::V6] {
                let name = "KUBE-TEST";
                sets.create_new(&set(name, kind, family)).unwrap();
                let entries = entries(kind, family);
                assert!(sets.add(name, &entries).unwrap().is_empty());
                let listing = sets.list(name).unwrap().unwrap();
                assert_eq!(listing.entries, entries, "{kind:?} {family:?}");
                assert_eq!(listing.header.kind, Some(kind));
                let ports = kind == Type::BitmapPort;
                assert_eq!(listing.header.family, (!ports).then_some(family));
                assert_eq!(listing.header.references, 0);
                assert_eq!(listing.header.max_entries, if ports { 0 } else { 100_000 });
                let mut texts: Vec<_> = entries.iter().map(Entry::to_string).collect();
                texts.sort_unstable();
                assert_eq!(printed(name), texts);
                // Once more changes nothing.
                sets.create(&set(name, kind, family)).unwrap();
                assert!(sets.add(name, &entries).unwrap().is_empty());
                assert!(sets.delete(name, &entries[1..]).unwrap().is_empty());
                assert!(sets.delete(name, &entries[1..]).unwrap().is_empty());
                assert_eq!(sets.list(name).unwrap().unwrap().entries, entries[..1]);
                sets.flush(name).unwrap();
                assert_eq!(sets.list(name).unwrap().unwrap().entries, []);
                assert!(sets.destroy(name).unwrap());
                assert!(!sets.destroy(name).unwrap());
                assert_eq!(sets.list(name).unwrap(), None);
            }
        }
    });
}

#[test]
fn entries_by_the_thousand_are_listed_in_many_parts() {
    with_sets(|sets| {
        let name = "KUBE-CLUSTER-IP";
        sets.create(&set(name, Type::HashIpPort, Family::V4))
            .unwrap();
        let entry = |n: u32| {
            Entry::IpPort(IpPort {
                address: Ipv4Addr::from(0x0a60_0000 + n).into(),
                protocol: TCP,
                port: 80,
            })
        };
        let many: Vec<_> = (0..10_000).map(entry).collect();
        assert!(sets.add(name, &many).unwrap().is_empty());
        let listing = sets.list(name).unwrap().unwrap();
        assert_eq!(listing.header.entries, 10_000);
        assert_eq!(listing.entries, many);
        assert!(sets.delete(name, &many[5000..]).unwrap().is_empty());
        assert_eq!(sets.list(name).unwrap().unwrap().entries, many[..5000]);
    });
}

#[test]
fn ipvs_078_a_full_set_says_which_entries_do_not_fit_and_is_replaced_by_a_larger_one() {
    with_sets(|sets| {
        let small = Set {
            max_entries: 64,
            ..set("small", Type::HashIp, Family::V4)
        };
        sets.create(&small).unwrap();
        let many: Vec<_> = (0..2000)
            .map(|n| Entry::Ip(Ipv4Addr::from(0x0a60_0000 + n).into()))
            .collect();
        let refused = sets.add("small", &many).unwrap();
        let kept = sets.list("small").unwrap().unwrap().entries;
        assert_eq!(kept.len() + refused.len(), many.len());
        for refused in &refused {
            assert!(!kept.contains(&many[refused.index]));
            let RequestError::Refused { source, .. } = &refused.error else {
                panic!("{refused:?}")
            };
            assert_eq!(source.kind(), ErrorKind::StorageFull);
        }
        sets.create(&set("large", Type::HashIp, Family::V4))
            .unwrap();
        assert!(sets.add("large", &many).unwrap().is_empty());
        sets.swap("small", "large").unwrap();
        assert!(sets.destroy("large").unwrap());
        assert_eq!(sets.list("small").unwrap().unwrap().entries, many);
        sets.rename("small", "other").unwrap();
        assert_eq!(sets.list("small").unwrap(), None);
        let names: Vec<_> = sets.headers().unwrap();
        let names: Vec<_> = names.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["other"]);
    });
}

#[test]
fn one_entry_that_is_refused_does_not_harm_those_behind_it() {
    with_sets(|sets| {
        let name = "KUBE-IPVS-IPS";
        sets.create(&set(name, Type::HashIp, Family::V4)).unwrap();
        let entries = ["10.0.0.1", "fd00::1", "10.0.0.2"].map(|text| Entry::Ip(ip(text)));
        let refused = sets.add(name, &entries).unwrap();
        let indices: Vec<_> = refused.iter().map(|refused| refused.index).collect();
        assert_eq!(indices, [1]);
        let now = sets.list(name).unwrap().unwrap().entries;
        assert_eq!(now, [entries[0], entries[2]]);
    });
}

#[test]
fn ipvs_028_a_network_of_one_address_is_itself_however_it_is_listed() {
    with_sets(|sets| {
        let name = "KUBE-LOAD-BALANCER-SOURCE-CIDR";
        sets.create(&set(name, Type::HashIpPortNet, Family::V4))
            .unwrap();
        run(
            "ipset",
            &["add", name, "198.51.100.10,tcp:80,203.0.113.7/32"],
        );
        assert_eq!(printed(name), ["198.51.100.10,tcp:80,203.0.113.7"]);
        let network = Network::new(ip("203.0.113.7"), 32).unwrap();
        let entry = Entry::IpPortNet(ip_port("198.51.100.10", TCP, 80), network);
        assert_eq!(sets.list(name).unwrap().unwrap().entries, [entry]);
    });
}

#[test]
fn what_is_wrong_with_a_set_is_said_in_words() {
    with_sets(|sets| {
        let kind = |result: Result<(), RequestError>| match result.unwrap_err() {
            RequestError::Refused { source, .. } => source.kind(),
            error => panic!("{error:?}"),
        };
        sets.create(&set("a", Type::HashIp, Family::V4)).unwrap();
        sets.create(&set("b", Type::HashIp, Family::V6)).unwrap();
        let other = set("a", Type::HashIpPort, Family::V4);
        assert_eq!(kind(sets.create(&other)), ErrorKind::AlreadyExists);
        let same = set("a", Type::HashIp, Family::V4);
        assert_eq!(kind(sets.create_new(&same)), ErrorKind::AlreadyExists);
        assert_eq!(kind(sets.swap("a", "b")), ErrorKind::InvalidInput);
        assert_eq!(kind(sets.swap("a", "c")), ErrorKind::AlreadyExists);
        assert_eq!(kind(sets.rename("a", "b")), ErrorKind::AlreadyExists);
        assert_eq!(kind(sets.flush("c")), ErrorKind::NotFound);
        let missing = sets.add("c", &[Entry::Ip(ip("10.0.0.1"))]).map(drop);
        assert_eq!(kind(missing), ErrorKind::NotFound);
        let long = set(&"x".repeat(32), Type::HashIp, Family::V4);
        assert_eq!(kind(sets.create(&long)), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_listing_is_understood_as_kept() {
    with_sets(|_| {
        let mut sets = Ipset::new(Tap::open(Protocol::Netfilter));
        let name = "KUBE-LOOP-BACK";
        sets.create(&set(name, Type::HashIpPortIp, Family::V4))
            .unwrap();
        let entries = entries(Type::HashIpPortIp, Family::V4);
        sets.add(name, &entries).unwrap();
        sets.transport_mut().received.clear();
        sets.list(name).unwrap();
        let now = pick(&sets.transport_mut().received, 0x607);
        let caption = "A set of type hash:ip,port,ip, as dumped by Linux 6.18.";
        captured("ipset.hex", caption, &now);
    });
}
