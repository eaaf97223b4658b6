//! The rules of iptables, as `iptables-restore` reads and `iptables-save` prints them.

use ferrule_core::facts::{Detector, Masquerade};
use ferrule_kernel::xt::Table;

use super::*;

fn context(family: Family) -> statics::Context {
    statics::Context {
        family,
        mark: 1 << 14,
        random_fully: true,
        detector: Some(Detector::Source("10.1.0.0/16".parse().unwrap())),
        masquerade: Masquerade::Outside,
    }
}

/// All rules as text, chain by chain, nat first.
fn restore(context: &statics::Context, contents: &Contents) -> Vec<String> {
    let mut lines = Vec::new();
    for wanted in [Table::Nat, Table::Filter] {
        for ((table, chain), rules) in statics::build(context, contents) {
            if table == wanted {
                lines.extend(rules.iter().map(|rule| {
                    let mut line = format!("-A {chain}");
                    rule.restore(&mut line);
                    line
                }));
            }
        }
    }
    lines
}

fn with(sets: &[Set]) -> Contents {
    Contents {
        occupied: sets.iter().copied().collect(),
        barred: BTreeSet::new(),
    }
}

const ALWAYS: [&str; 17] = [
    "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ",
    "-A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000",
    "-A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN",
    "-A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000",
    "-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" \
     -j MASQUERADE --random-fully",
    "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN",
    "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
    "-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" \
     -m mark --mark 0x00004000/0x00004000 -j ACCEPT",
    "-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" \
     -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN",
    "-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN",
    "-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN",
    "-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN",
    "-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN",
    "-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst \
     -j REJECT",
    "-A KUBE-NODE-PORT -m comment --comment \"Kubernetes health check node port\" \
     -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT",
    "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP",
];

#[test]
fn ipvs_029_an_empty_cluster_has_the_rules_that_are_always_there() {
    let lines = restore(&context(Family::V4), &Contents::default());
    assert_eq!(lines, ALWAYS);
    let six = restore(&context(Family::V6), &Contents::default());
    assert!(six.contains(&"-A KUBE-SERVICES -s ::1/128 -j RETURN".to_owned()));
    assert_eq!(six.len(), lines.len());
}

/// What appears when a set has entries.
fn appearing(set: Set) -> Vec<String> {
    let context = context(Family::V4);
    let always = restore(&context, &Contents::default());
    let lines = restore(&context, &with(&[set])).into_iter();
    lines.filter(|line| !always.contains(line)).collect()
}

#[test]
fn ipvs_030_rules_about_a_set_are_there_while_it_has_entries() {
    let comment = |set: Set| format!("-m comment --comment \"{}\"", set.comment());
    let matching = |set: Set, fields: &str| {
        let name = set.name(Family::V4);
        format!("{} -m set --match-set {name} {fields}", comment(set))
    };
    let cluster_ip = matching(Set::ClusterIp, "dst,dst");
    let accept = "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
    assert_eq!(
        appearing(Set::ClusterIp),
        [
            format!("-A KUBE-SERVICES {cluster_ip} ! -s 10.1.0.0/16 -j KUBE-MARK-MASQ"),
            accept.to_owned(),
        ]
    );
    let loop_back = matching(Set::LoopBack, "dst,dst,src");
    assert_eq!(
        appearing(Set::LoopBack),
        [format!("-A KUBE-POSTROUTING {loop_back} -j MASQUERADE")]
    );
    let external = matching(Set::ExternalIp, "dst,dst");
    let remote = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL";
    assert_eq!(
        appearing(Set::ExternalIp),
        [
            format!("-A KUBE-SERVICES {external} -j KUBE-MARK-MASQ"),
            format!("-A KUBE-SERVICES {external} {remote} -j ACCEPT"),
            format!("-A KUBE-SERVICES {external} -m addrtype --dst-type LOCAL -j ACCEPT"),
        ]
    );
    let local = matching(Set::ExternalIpLocal, "dst,dst");
    let from_node = "-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ";
    assert_eq!(
        appearing(Set::ExternalIpLocal),
        [
            format!("-A KUBE-SERVICES {local} {from_node}"),
            format!("-A KUBE-SERVICES {local} {remote} -j ACCEPT"),
            format!("-A KUBE-SERVICES {local} -m addrtype --dst-type LOCAL -j ACCEPT"),
        ]
    );
    let sctp = matching(Set::NodePortSctpLocal, "dst,dst");
    assert_eq!(
        appearing(Set::NodePortSctpLocal),
        [
            format!("-A KUBE-NODE-PORT -p sctp {sctp} {from_node}"),
            format!("-A KUBE-NODE-PORT -p sctp {sctp} -j RETURN"),
        ]
    );
    let udp = matching(Set::NodePortUdp, "dst");
    assert_eq!(
        appearing(Set::NodePortUdp),
        [format!("-A KUBE-NODE-PORT -p udp {udp} -j KUBE-MARK-MASQ")]
    );
    let firewalled = matching(Set::Firewalled, "dst,dst");
    assert_eq!(
        appearing(Set::Firewalled),
        [format!(
            "-A KUBE-PROXY-FIREWALL {firewalled} -j KUBE-SOURCE-RANGES-FIREWALL"
        )]
    );
    let outside = matching(Set::NoLocalEndpoint, "dst,dst");
    assert_eq!(
        appearing(Set::NoLocalEndpoint),
        [format!(
            "-A KUBE-PROXY-FIREWALL {outside} -m conntrack --ctstate NEW ! -s 10.1.0.0/16 -j DROP"
        )]
    );
    let nobody = matching(Set::NoEndpoint, "dst,dst");
    assert_eq!(
        appearing(Set::NoEndpoint),
        [format!(
            "-A KUBE-PROXY-FIREWALL {nobody} -m conntrack --ctstate NEW -j DROP"
        )]
    );
    for set in [Set::HealthCheck, Set::Addresses] {
        assert_eq!(appearing(set), [] as [&str; 0]);
    }
}

#[test]
fn sources_are_allowed_before_the_rest_is_dropped() {
    let contents = with(&[Set::SourceCidr, Set::SourceIp]);
    let lines = restore(&context(Family::V4), &contents);
    let of_chain = |line: &&String| line.starts_with("-A KUBE-SOURCE-RANGES-FIREWALL");
    let ends: Vec<&str> = lines
        .iter()
        .filter(of_chain)
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(ends, ["RETURN", "RETURN", "DROP"]);
}

#[test]
fn ipvs_032_who_is_masqueraded_on_the_way_to_cluster_ips() {
    let line = |masquerade, detector| {
        let context = statics::Context {
            detector,
            masquerade,
            ..context(Family::V4)
        };
        let lines = restore(&context, &with(&[Set::ClusterIp]));
        let text = "--match-set KUBE-CLUSTER-IP ";
        let found = lines
            .iter()
            .find(|line| line.ends_with("KUBE-MARK-MASQ") && line.contains(text));
        let line = found.unwrap();
        line[line.find(text).unwrap() + text.len()..].to_owned()
    };
    let net = || Some(Detector::Source("10.1.0.0/16".parse().unwrap()));
    assert_eq!(line(Masquerade::Always, net()), "dst,dst -j KUBE-MARK-MASQ");
    assert_eq!(
        line(Masquerade::Outside, net()),
        "dst,dst ! -s 10.1.0.0/16 -j KUBE-MARK-MASQ"
    );
    assert_eq!(
        line(
            Masquerade::Outside,
            Some(Detector::Interface("cbr0".into()))
        ),
        "dst,dst ! -i cbr0 -j KUBE-MARK-MASQ"
    );
    let prefix = Some(Detector::InterfacePrefix("veth".into()));
    assert_eq!(
        line(Masquerade::Outside, prefix),
        "dst,dst ! -i veth+ -j KUBE-MARK-MASQ"
    );
    assert_eq!(line(Masquerade::Never, None), "src,dst -j KUBE-MARK-MASQ");
}

#[test]
fn ipvs_033_only_the_rule_for_marked_packets_is_random_fully_and_only_where_iptables_can() {
    for random_fully in [false, true] {
        let context = statics::Context {
            random_fully,
            ..context(Family::V4)
        };
        let lines = restore(&context, &with(&[Set::LoopBack]));
        let random = lines.iter().filter(|line| line.contains("--random-fully"));
        assert_eq!(random.count(), usize::from(random_fully));
    }
}

#[test]
fn ipvs_034_marks_follow_the_bit() {
    for (bit, text) in [(0, "0x00000001"), (31, "0x80000000")] {
        let context = statics::Context {
            mark: 1 << bit,
            ..context(Family::V4)
        };
        let lines = restore(&context, &Contents::default());
        assert!(lines.contains(&format!("-A KUBE-MARK-MASQ -j MARK --or-mark {text}")));
        assert!(lines.contains(&format!("-A KUBE-POSTROUTING -j MARK --xor-mark {text}")));
    }
}

#[test]
fn iptables_save_prints_some_of_it_differently() {
    let barred = Barred {
        ip: ip("198.51.100.10"),
        protocol: Protocol::Tcp,
        port: ferrule_testbed::cluster::port(80),
    };
    let contents = Contents {
        occupied: BTreeSet::from([Set::NodePortSctp]),
        barred: BTreeSet::from([barred]),
    };
    let built = statics::build(&context(Family::V4), &contents);
    let mut lines = Vec::new();
    for ((_, chain), rules) in built {
        for rule in rules {
            let mut line = format!("-A {chain}");
            rule.saved(Family::V4, &mut line);
            lines.push(line);
        }
    }
    for line in [
        "-A KUBE-IPVS-OUT-FILTER -s 198.51.100.10/32 -m ipvs --vproto 6 --vaddr 198.51.100.10 \
         --vport 80 -j DROP",
        "-A KUBE-NODE-PORT -p sctp -m comment --comment \"Kubernetes nodeport SCTP port for \
         masquerade purpose with type \\'hash ip:port\\'\" -m set --match-set \
         KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ",
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst \
         -j REJECT --reject-with icmp-port-unreachable",
    ] {
        assert!(
            lines.iter().any(|other| other == line),
            "{line}\n{lines:#?}"
        );
    }
}
