//! Where packets go, and packets that are delivered here whatever their destination is.

use std::net::IpAddr;
use std::time::Duration;

use ferrule_kernel::Family;
use ferrule_kernel::route::{Diversion, Route, Way};

use crate::support::{in_namespace, run};

fn ip(family: Family, words: &str) -> String {
    let family = if family == Family::V4 { "-4" } else { "-6" };
    let words: Vec<_> = [family].into_iter().chain(words.split(' ')).collect();
    run("ip", &words)
}

#[test]
fn an_address_is_local_behind_an_interface_or_nowhere() {
    in_namespace(|| {
        run("ip", &["link", "set", "lo", "up"]);
        let ends = ["link", "add", "one", "type", "veth", "peer", "name", "two"];
        run("ip", &ends);
        for end in ["one", "two"] {
            run("ip", &["link", "set", end, "up"]);
        }
        let mut route = Route::open().unwrap();
        let links = route.links().unwrap();
        let one = links.iter().find(|link| link.name == "one").unwrap().index;
        for (family, own, bits, near, far, bad) in [
            (
                Family::V4,
                "10.0.0.1",
                24,
                "10.0.0.7",
                "192.0.2.1",
                "10.9.0.1",
            ),
            (
                Family::V6,
                "fd00::1",
                64,
                "fd00::7",
                "2001:db8::1",
                "fd09::1",
            ),
        ] {
            ip(family, &format!("address add {own}/{bits} dev one nodad"));
            ip(family, &format!("route add unreachable {bad}"));
            let mut way = |to: &str| route.way_to(to.parse::<IpAddr>().unwrap()).unwrap();
            // An address of IPv6 is there a moment after it was added.
            for _ in 0..1000 {
                if way(own) == Way::Local {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(way(own), Way::Local);
            assert_eq!(way(near), Way::Link(one));
            assert_eq!(way(far), Way::None, "no default route");
            assert_eq!(way(bad), Way::None);
        }
    });
}

#[test]
fn a_diversion_is_made_once_and_removed_whole() {
    in_namespace(|| {
        run("ip", &["link", "set", "lo", "up"]);
        for family in [Family::V4, Family::V6] {
            let diversion = Diversion {
                family,
                mark: 0x77,
                table: 1234,
                priority: 50,
            };
            let mut route = Route::open().unwrap();
            let rules = ip(family, "rule");
            assert_eq!(route.divert(&diversion).unwrap(), 2);
            assert_eq!(route.divert(&diversion).unwrap(), 0);
            let with = ip(family, "rule");
            assert!(
                with.contains("50:\tfrom all fwmark 0x77 lookup 1234"),
                "{with}"
            );
            assert_eq!(with.lines().count(), rules.lines().count() + 1);
            let table = ip(family, "route show table 1234");
            assert!(table.starts_with("local default dev lo "), "{table}");
            // Half of it is as good as none.
            ip(family, "rule del fwmark 0x77");
            assert_eq!(route.divert(&diversion).unwrap(), 1);
            assert_eq!(route.divert_no_more(&diversion).unwrap(), 2);
            assert_eq!(route.divert_no_more(&diversion).unwrap(), 0);
            assert_eq!(ip(family, "rule"), rules);
        }
    });
}
