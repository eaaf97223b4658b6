//! What is written for layouts that mode iptables does not have.

use ferrule_core::model::Family;

use super::super::installed::Installed;
use super::super::removal::removal;
use super::super::rule::Target;
use super::super::sample::{FIREWALL, FORWARD, LAYOUT, MARK, SERVICES, key, to};
use super::*;

/// One Service port with a chain that jumps to an endpoint's.
fn port_rules(name: &str) -> PortRules {
    let chooser = Chain::generated("KUBE-SVC-", name);
    let endpoint = Chain::generated("KUBE-SEP-", name);
    let mut port_rules = PortRules::default();
    port_rules.add((Table::Nat, SERVICES), false, to(chooser));
    port_rules.chains.insert(chooser, vec![to(endpoint)]);
    port_rules.chains.insert(endpoint, vec![to(MARK)]);
    port_rules
}

fn statics(accept: bool, last: Target) -> Statics {
    let target = if accept { Target::Accept } else { Target::Drop };
    let rules = |target| vec![Rule::new([], target)];
    Statics::from([
        ((Table::Filter, FORWARD), rules(target)),
        ((Table::Nat, MARK), rules(Target::SetMark(1))),
        ((Table::Nat, SERVICES), rules(last)),
    ])
}

fn wanted() -> Ruleset {
    let mut wanted = Ruleset {
        statics: statics(true, Target::Return),
        ..Ruleset::default()
    };
    wanted.add(&key("b"), port_rules("b"));
    wanted.add(&key("a"), port_rules("a"));
    wanted
}

#[test]
fn chains_jumps_and_rules_come_in_the_order_of_the_layout() {
    let document = full(&LAYOUT, &Installed::new(Family::V4), &wanted());
    assert_eq!(
        document.text(),
        "*filter\n\
         :KUBE-FORWARD - [0:0]\n\
         :KUBE-FIREWALL - [0:0]\n\
         -A KUBE-FORWARD -j ACCEPT\n\
         -I INPUT -j KUBE-FIREWALL\n\
         -I FORWARD -j KUBE-FORWARD\n\
         COMMIT\n\
         *nat\n\
         :KUBE-SERVICES - [0:0]\n\
         :KUBE-MARK-MASQ - [0:0]\n\
         :KUBE-SVC-a - [0:0]\n\
         :KUBE-SVC-b - [0:0]\n\
         :KUBE-SEP-a - [0:0]\n\
         :KUBE-SEP-b - [0:0]\n\
         -A KUBE-SERVICES -j KUBE-SVC-a\n\
         -A KUBE-SERVICES -j KUBE-SVC-b\n\
         -A KUBE-SERVICES -j RETURN\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark 0x00000001\n\
         -A PREROUTING -j KUBE-SERVICES\n\
         -A KUBE-SVC-a -j KUBE-SEP-a\n\
         -A KUBE-SVC-b -j KUBE-SEP-b\n\
         -A KUBE-SEP-a -j KUBE-MARK-MASQ\n\
         -A KUBE-SEP-b -j KUBE-MARK-MASQ\n\
         COMMIT\n"
    );
}

#[test]
fn static_chains_that_differ_are_written_anew_and_last_rules_replaced() {
    let both = (
        &statics(true, Target::Return),
        &statics(false, Target::Accept),
    );
    let mut index = RuleIndex::of(&wanted());
    let document = delta(&LAYOUT, &[], &mut index, both, wanted);
    assert_eq!(
        document.text(),
        "*filter\n\
         :KUBE-FORWARD - [0:0]\n\
         -A KUBE-FORWARD -j DROP\n\
         COMMIT\n\
         *nat\n\
         -D KUBE-SERVICES -j RETURN\n\
         -A KUBE-SERVICES -j ACCEPT\n\
         COMMIT\n"
    );
    assert_eq!(index, RuleIndex::of(&wanted()));
}

#[test]
fn what_nothing_is_said_about_is_left_alone() {
    let mut before = statics(true, Target::Return);
    before.insert((Table::Filter, FIREWALL), vec![to(FORWARD)]);
    let after = statics(true, Target::Return);
    let mut index = RuleIndex::of(&wanted());
    let document = delta(&LAYOUT, &[], &mut index, (&before, &after), wanted);
    assert_eq!(document.len(), 0, "{document:?}");
}

#[test]
fn removal_takes_each_thing_once_and_leaves_what_is_kubelets() {
    let filter = ":INPUT ACCEPT\n:FORWARD ACCEPT\n:KUBE-FORWARD -\n:KUBE-FIREWALL -\n\
                  -A INPUT -j KUBE-FIREWALL\n-A FORWARD -j KUBE-FORWARD\n";
    let nat = ":PREROUTING ACCEPT\n:KUBE-SERVICES -\n:KUBE-SVC-OLD -\n:OTHER -\n\
               -A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\n";
    let mut installed = Installed::new(Family::V4);
    installed.read(Table::Filter, filter);
    installed.read(Table::Nat, nat);
    let document = removal(&[&LAYOUT, &LAYOUT], &installed);
    assert_eq!(
        document.text(),
        "*nat\n\
         :KUBE-SERVICES - [0:0]\n\
         :KUBE-SVC-OLD - [0:0]\n\
         -D PREROUTING -j KUBE-SERVICES\n\
         -D PREROUTING -j KUBE-SERVICES\n\
         -X KUBE-SERVICES\n\
         -X KUBE-SVC-OLD\n\
         COMMIT\n\
         *filter\n\
         :KUBE-FORWARD - [0:0]\n\
         -D FORWARD -j KUBE-FORWARD\n\
         -X KUBE-FORWARD\n\
         COMMIT\n"
    );
}
