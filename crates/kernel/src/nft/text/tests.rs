//! Single words and their limits; whole tables are compared with `nft` itself on the real kernel.

use super::*;
use crate::nft::expr::{Expr, Found, Reg};
use crate::nft::{ChainKind, Rule};

fn net(first: [u8; 4], last: [u8; 4]) -> String {
    range(Field::Ipv4Addr, &first, &last).unwrap()
}

#[test]
fn ranges_are_networks_where_they_can_be() {
    assert_eq!(net([10, 0, 0, 1], [10, 0, 0, 1]), "10.0.0.1");
    assert_eq!(net([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
    assert_eq!(net([10, 0, 0, 4], [10, 0, 0, 7]), "10.0.0.4/30");
    assert_eq!(net([10, 0, 0, 5], [10, 0, 0, 7]), "10.0.0.5-10.0.0.7");
    assert_eq!(net([0, 0, 0, 0], [255, 255, 255, 255]), "0.0.0.0/0");
}

#[test]
fn what_cannot_be_said_is_refused() {
    for odd in ["", "1st", "a b", "x;drop", "é"] {
        assert!(name(odd).is_err(), "{odd:?}");
    }
    assert_eq!(name("stay-a.b..tcp"), Ok("stay-a.b..tcp"));
    let drop = Expr::Verdict(Verdict::Drop);
    let load = Expr::source_address(Family::V4, Reg::FIRST);
    // Loaded and never used; used twice.
    let unused = Rule::new("x", vec![load.clone(), drop.clone()]);
    let lookup = Expr::Lookup {
        set: "s".into(),
        key: Reg::FIRST,
        found: Found::Present,
    };
    let twice = Rule::new("x", vec![load, lookup.clone(), lookup, drop]);
    for bad in [unused, twice] {
        assert!(rule(&bad, Family::V4).is_err(), "{bad:?}");
    }
}

#[test]
fn a_remark_stays_within_its_quotes() {
    let odd = Comment::new("a\"; drop\nb");
    assert_eq!(comment(&odd), "comment \"a?; drop?b\"");
}

#[test]
fn interfaces_that_end_in_a_star_are_not_prefixes() {
    let whole = |name: &str| interface(Value::new().interface(name).as_bytes()).unwrap();
    assert_eq!(whole("eth0"), "\"eth0\"");
    assert_eq!(whole("eth*"), "\"eth\\*\"");
    assert_eq!(interface(b"veth").unwrap(), "\"veth*\"");
    assert!(interface(b"a\"b").is_err());
}

#[test]
fn priorities_near_a_name_are_told_from_there() {
    let line = |hook, number| {
        let base = Chain::base("x", ChainKind::Filter, hook, number);
        chain(&base).unwrap().remove(0)
    };
    assert_eq!(
        line(Hook::Prerouting, -110),
        "type filter hook prerouting priority dstnat - 10; policy accept;"
    );
    assert!(line(Hook::Output, -110).contains("priority -110;"));
    assert!(line(Hook::Input, 5).contains("priority filter + 5;"));
}

#[test]
fn times_are_told_in_the_largest_units() {
    assert_eq!(duration(Duration::from_hours(3)), "3h");
    assert_eq!(duration(Duration::from_millis(90_061_001)), "1d1h1m1s1ms");
    assert_eq!(duration(Duration::ZERO), "0s");
}
