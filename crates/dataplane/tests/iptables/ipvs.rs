//! What kube-proxy's mode ipvs leaves behind, and its removal.

use ferrule_core::model::Family;
use ferrule_dataplane::{Dataplane as _, ipvs};
use ferrule_kernel::exchange::Exchange;
use ferrule_kernel::ipset::Ipset;
use ferrule_kernel::socket::{Protocol, Socket};
use ferrule_kernel::wire::{NLM_F_CREATE, NLM_F_EXCL};
use ferrule_kernel::xt::{Flavour, Xt};

use crate::state::everything;
use crate::support::*;

/// Rules of that mode as its restore text has them, with one rule for each way from chain to chain
/// and from chain to set; `SIX` is what its sets of IPv6 have in their names.
const NAT: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SERVICES -m set --match-set KUBE-SIXCLUSTER-IP dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
"#;
const FILTER: &str = r#"*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-I INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-SIXIPVS-IPS dst -j REJECT
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-SIXLOAD-BALANCER-FW dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
"#;

const SETS: [&str; 3] = ["CLUSTER-IP", "IPVS-IPS", "LOAD-BALANCER-FW"];

const fn six(family: Family) -> &'static str {
    match family {
        Family::V4 => "",
        Family::V6 => "6-",
    }
}

/// Makes a set of addresses.
fn create_set(family: Family, name: &str) {
    let mut exchange = Exchange::new(Socket::open(Protocol::Netfilter).unwrap());
    let create = |writer: &mut ferrule_kernel::wire::Writer| {
        writer.raw(&[2, 0, 0, 0]);
        writer.u8(1, 6);
        writer.text(2, name);
        writer.text(3, "hash:ip");
        writer.u8(4, 0);
        writer.u8(5, kernel(family).number());
        writer.nest(7, |_| {});
    };
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    exchange.acknowledged(0x602, flags, create).unwrap();
}

fn leave_behind(family: Family, flavour: Flavour) {
    for name in SETS {
        create_set(family, &format!("KUBE-{}{name}", six(family)));
    }
    let xt = Xt::open_as(flavour, kernel(family)).unwrap();
    for text in [NAT, FILTER] {
        xt.restore(&text.replace("SIX", six(family))).unwrap();
    }
}

fn ours(scene: &Scene) -> Vec<String> {
    let saved = scene.saved();
    let lines = saved.lines().filter(|line| line.contains("KUBE-"));
    lines.map(str::to_owned).collect()
}

#[test]
fn nft_075_rules_and_sets_of_mode_ipvs_are_removed() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        leave_behind(family, flavour);
        assert!(ours(&scene).len() > 25, "{:?}", ours(&scene));
        // While rules name them, sets cannot go.
        let error = ipvs::remove().unwrap_err();
        let step = format!("the kernel refused destroy KUBE-{}CLUSTER-IP", six(family));
        assert_eq!(error.to_string(), step);
        assert!(scene.dataplane.remove().unwrap().steps > 20);
        assert_eq!(ours(&scene), [] as [&str; 0]);
        assert_eq!(ipvs::remove().unwrap().steps, SETS.len());
        let mut sets = Ipset::open().unwrap().unwrap();
        for name in SETS {
            assert!(
                !sets
                    .destroy(&format!("KUBE-{}{name}", six(family)))
                    .unwrap()
            );
        }
        assert_eq!(scene.dataplane.remove().unwrap().steps, 0);
        assert_eq!(ipvs::remove().unwrap().steps, 0);
    });
}

#[test]
fn nft_075_rules_of_both_modes_are_removed_at_once() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        leave_behind(family, flavour);
        everything(&mut scene);
        scene.whole();
        scene.dataplane.remove().unwrap();
        let left = ours(&scene);
        assert!(
            left.iter().all(|line| line.contains("KUBE-FIREWALL")),
            "{left:?}"
        );
        assert_eq!(ipvs::remove().unwrap().steps, SETS.len());
    });
}

#[test]
fn sets_of_others_stay() {
    in_namespace(|| {
        create_set(Family::V4, "KUBE-OTHER");
        assert_eq!(ipvs::remove().unwrap().steps, 0);
        assert!(
            Ipset::open()
                .unwrap()
                .unwrap()
                .destroy("KUBE-OTHER")
                .unwrap()
        );
    });
}

#[test]
fn an_interface_of_somebody_else_stays_and_is_told_of() {
    in_namespace(|| {
        create_set(Family::V4, "KUBE-IPVS-IPS");
        run("ip", &["link", "add", "kube-ipvs0", "type", "veth"]);
        let error = ipvs::remove().unwrap_err();
        assert_eq!(error.to_string(), "the kernel refused find kube-ipvs0");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "it is veth, not dummy");
        run("ip", &["link", "show", "kube-ipvs0"]);
        // What else there was is gone.
        assert!(
            !Ipset::open()
                .unwrap()
                .unwrap()
                .destroy("KUBE-IPVS-IPS")
                .unwrap()
        );
    });
}
