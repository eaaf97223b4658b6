//! Which rules a Service gets: kube-proxy's behaviours one by one. No kernel is needed here.

use std::net::IpAddr;

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{Family, Port, Protocol, Service, ServiceType, Slice, TrafficPolicy};
use ferrule_dataplane::iptables::{Options, render};

use crate::support::{Both, Cluster, Objects, node, service, settings, slice};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn cluster() -> Cluster {
    Cluster::with(settings(&["10.0.0.0/8", "fd00:1::/64"]))
}

/// A cluster of one Service, `demo/s` on 172.30.0.1, and what it is drawn as.
fn drawn(service: &Service, pods: &[(&str, bool)]) -> Text {
    let pods: Vec<_> = pods.iter().map(|(pod, local)| (ip(pod), *local)).collect();
    let mut cluster = cluster();
    cluster
        .node(node("here").at(ip("192.168.0.2")))
        .both(service, 8080, &pods);
    text(&mut cluster)
}

fn text(cluster: &mut Cluster) -> Text {
    cluster.step();
    let options = Options::default();
    Text(render(&cluster.desired, Family::V4, options, &[]))
}

fn plain() -> Service {
    service("s", ip("172.30.0.1"))
}

fn with_external_ip(mut service: Service) -> Service {
    service.external_ips = [ip("192.0.2.7")].into();
    service
}

fn external_local(mut service: Service) -> Service {
    service.external_policy_field = TrafficPolicy::Local;
    service
}

fn internal_local(mut service: Service) -> Service {
    service.internal_policy = TrafficPolicy::Local;
    service
}

const HERE: &[(&str, bool)] = &[("10.180.0.1", true)];
const THERE: &[(&str, bool)] = &[("10.180.1.1", false)];
const BOTH: &[(&str, bool)] = &[("10.180.0.1", true), ("10.180.1.1", false)];

/// Suffix of the chains of `demo/s` over TCP.
const S: &str = "HLJR3VWS7VPD6ZRC";

/// What `iptables-restore` would be given.
struct Text(String);

impl Text {
    fn table(&self, name: &str) -> Vec<&str> {
        let lines = self.0.lines();
        let lines = lines.skip_while(|line| line.strip_prefix('*') != Some(name));
        lines.take_while(|line| *line != "COMMIT").collect()
    }

    /// The rules of one chain. In them `@SVC` is the Service's chain of this kind, `@1` the chain
    /// of the first endpoint, and `P` the protocol.
    fn chain(&self, table: &str, chain: &str) -> Vec<String> {
        let start = format!("-A {chain} ");
        let lines = self.table(table).into_iter();
        lines
            .filter_map(|line| line.strip_prefix(&start))
            .map(|line| self.shorten(line))
            .collect()
    }

    fn own(&self, kind: &str) -> Vec<String> {
        self.chain("nat", &format!("KUBE-{kind}-{S}"))
    }

    fn shorten(&self, line: &str) -> String {
        let mut short = line.to_owned();
        for kind in ["SVC", "SVL", "EXT", "FW"] {
            short = short.replace(&format!("KUBE-{kind}-{S}"), &format!("@{kind}"));
        }
        for (number, chain) in (1..).zip(self.endpoints()) {
            short = short.replace(&chain, &format!("@{number}"));
        }
        short
            .replace("-m tcp -p tcp", "P")
            .replace("-m comment --comment", "#")
    }

    /// Chains of endpoints, in the order of their addresses.
    fn endpoints(&self) -> Vec<String> {
        let mut found: Vec<(&str, &str)> = self
            .table("nat")
            .into_iter()
            .filter(|line| line.contains("DNAT"))
            .map(|line| {
                let mut words = line.split(' ');
                (words.next_back().unwrap(), words.nth(1).unwrap())
            })
            .collect();
        found.sort_unstable();
        found
            .into_iter()
            .map(|(_, chain)| chain.to_owned())
            .collect()
    }

    fn declared(&self, table: &str) -> Vec<String> {
        let lines = self.table(table).into_iter();
        lines
            .filter_map(|line| line.strip_prefix(':')?.strip_suffix(" - [0:0]"))
            .map(|name| self.shorten(name))
            .collect()
    }

    fn dispatch(&self) -> Vec<String> {
        let mut rules = self.chain("nat", "KUBE-SERVICES");
        let tail = rules.pop().unwrap();
        assert!(
            tail.contains("must be the last rule in this chain"),
            "{tail}"
        );
        rules
    }
}

#[test]
fn ipt_013_fourteen_jumps_are_put_first() {
    let text = Text(render(
        &cluster().desired,
        Family::V4,
        Options::default(),
        &[],
    ));
    let inserted = |table| {
        let lines = text.table(table).into_iter();
        let lines = lines.filter_map(|line| line.strip_prefix("-I "));
        lines.map(|line| text.shorten(line)).collect::<Vec<_>>()
    };
    let new = "-m conntrack --ctstate NEW #";
    assert_eq!(
        inserted("filter"),
        [
            format!(
                "INPUT {new} \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES"
            ),
            format!(
                "FORWARD {new} \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES"
            ),
            "INPUT # \"kubernetes health check service ports\" -j KUBE-NODEPORTS".to_owned(),
            format!("FORWARD {new} \"kubernetes service portals\" -j KUBE-SERVICES"),
            format!("OUTPUT {new} \"kubernetes service portals\" -j KUBE-SERVICES"),
            "FORWARD # \"kubernetes forwarding rules\" -j KUBE-FORWARD".to_owned(),
            format!("INPUT {new} \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL"),
            format!("OUTPUT {new} \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL"),
            format!("FORWARD {new} \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL"),
            "INPUT -j KUBE-FIREWALL".to_owned(),
            "OUTPUT -j KUBE-FIREWALL".to_owned(),
        ]
    );
    assert_eq!(
        inserted("nat"),
        [
            "OUTPUT # \"kubernetes service portals\" -j KUBE-SERVICES",
            "PREROUTING # \"kubernetes service portals\" -j KUBE-SERVICES",
            "POSTROUTING # \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
        ]
    );
}

#[test]
fn ipt_017_ipt_018_ipt_064_ipt_077_chains_are_named_in_order() {
    let text = Text(render(
        &cluster().desired,
        Family::V4,
        Options::default(),
        &[],
    ));
    let filter = [
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-FORWARD",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-FIREWALL",
        "KUBE-PROXY-CANARY",
    ];
    assert_eq!(text.declared("filter"), filter);
    let nat = [
        "KUBE-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-POSTROUTING",
        "KUBE-MARK-MASQ",
        "KUBE-PROXY-CANARY",
    ];
    assert_eq!(text.declared("nat"), nat);
    assert_eq!(text.declared("mangle"), ["KUBE-PROXY-CANARY"]);
    assert!(text.0.find("*filter") < text.0.find("*nat"));
}

#[test]
fn ipt_019_ipt_021_masquerading_asks_for_the_mark_and_clears_it_first() {
    let text = drawn(&plain(), HERE);
    assert_eq!(
        text.chain("nat", "KUBE-POSTROUTING"),
        [
            "-m mark ! --mark 0x00004000/0x00004000 -j RETURN",
            "-j MARK --xor-mark 0x00004000",
            "# \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
        ]
    );
    assert_eq!(
        text.chain("nat", "KUBE-MARK-MASQ"),
        ["-j MARK --or-mark 0x00004000"]
    );
}

#[test]
fn ipt_024_what_is_marked_or_known_is_forwarded() {
    assert_eq!(
        drawn(&plain(), HERE).chain("filter", "KUBE-FORWARD"),
        [
            "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
            "# \"kubernetes forwarding rules\" -m mark --mark 0x00004000/0x00004000 -j ACCEPT",
            "# \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]
    );
}

fn with_addresses(addresses: &[&str]) -> Cluster {
    Cluster::with(Settings {
        node_port_addresses: NodePortAddresses::parse(addresses).unwrap(),
        ..settings(&["10.0.0.0/8"])
    })
}

#[test]
fn ipt_025_ipt_027_martians_are_dropped_where_localhost_is_open() {
    let off = Options {
        localhost_node_ports: false,
        ..Options::default()
    };
    let martian = "# \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
                   -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
    for (addresses, family, options, wanted) in [
        (&[][..], Family::V4, Options::default(), true),
        (&["0.0.0.0/0"], Family::V4, Options::default(), true),
        (
            &["127.0.0.0/8", "::1/128"],
            Family::V4,
            Options::default(),
            true,
        ),
        (&["127.5.0.0/16"], Family::V4, Options::default(), true),
        (&["192.168.0.0/24"], Family::V4, Options::default(), false),
        (&[], Family::V4, off, false),
        (&[], Family::V6, Options::default(), false),
    ] {
        let text = Text(render(
            &with_addresses(addresses).desired,
            family,
            options,
            &[],
        ));
        let found = text.chain("filter", "KUBE-FIREWALL");
        let wanted: &[&str] = if wanted { &[martian] } else { &[] };
        assert_eq!(found, wanted, "{addresses:?}");
    }
}

#[test]
fn ipt_061_ipt_062_ipt_063_node_ports_come_last() {
    let start =
        "# \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let tail = |addresses: &[&str], family, options, local: &[&str]| {
        let local: Vec<_> = local.iter().map(|text| ip(text)).collect();
        let text = Text(render(
            &with_addresses(addresses).desired,
            family,
            options,
            &local,
        ));
        text.chain("nat", "KUBE-SERVICES")
    };
    let off = Options {
        localhost_node_ports: false,
        ..Options::default()
    };
    let on = Options::default();
    let one = |rest: &str| [format!("{start} {rest} -j KUBE-NODEPORTS")];
    assert_eq!(
        tail(&[], Family::V4, on, &[]),
        one("-m addrtype --dst-type LOCAL")
    );
    assert_eq!(
        tail(&[], Family::V4, off, &[]),
        one("-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8")
    );
    assert_eq!(
        tail(&[], Family::V6, on, &[]),
        one("-m addrtype --dst-type LOCAL ! -d ::1/128")
    );
    let nets = ["192.168.0.0/24", "127.0.0.0/8", "2001:db8::/64", "::1/128"];
    let local = ["192.168.0.7", "10.0.0.1", "127.0.0.1", "2001:db8::7", "::1"];
    assert_eq!(
        tail(&nets, Family::V4, on, &local),
        [one("-d 127.0.0.1"), one("-d 192.168.0.7")].concat()
    );
    assert_eq!(tail(&nets, Family::V4, off, &local), one("-d 192.168.0.7"));
    assert_eq!(tail(&nets, Family::V6, on, &local), one("-d 2001:db8::7"));
    let last = drawn(&plain().node_port(30001), HERE);
    assert!(
        last.chain("nat", "KUBE-SERVICES")
            .last()
            .unwrap()
            .starts_with(start)
    );
}

#[test]
fn ipt_028_a_cluster_ip_leads_to_its_pool() {
    assert_eq!(
        drawn(&plain(), BOTH).dispatch(),
        ["# \"demo/s cluster IP\" P -d 172.30.0.1 --dport 80 -j @SVC"]
    );
    let text = drawn(&internal_local(plain()), BOTH);
    assert_eq!(
        text.dispatch(),
        ["# \"demo/s cluster IP\" P -d 172.30.0.1 --dport 80 -j @SVL"]
    );
    // Nobody else needs the others.
    assert!(text.own("SVC").is_empty());
    assert_eq!(text.endpoints().len(), 1);
}

#[test]
fn ipt_029_no_endpoints_means_a_refusal() {
    let text = drawn(&plain(), &[]);
    assert_eq!(
        text.chain("filter", "KUBE-SERVICES"),
        ["# \"demo/s has no endpoints\" P -d 172.30.0.1 --dport 80 -j REJECT"]
    );
    assert!(text.dispatch().is_empty());
    assert_eq!(text.declared("nat").len(), 5);
}

#[test]
fn ipt_030_no_local_endpoints_means_silence() {
    let text = drawn(&internal_local(plain()), THERE);
    assert_eq!(
        text.chain("filter", "KUBE-SERVICES"),
        ["# \"demo/s has no local endpoints\" P -d 172.30.0.1 --dport 80 -j DROP"]
    );
    assert!(text.dispatch().is_empty());
}

#[test]
fn ipt_031_an_external_ip_leads_to_the_outer_chain() {
    assert_eq!(
        drawn(&with_external_ip(plain()), HERE).dispatch()[1],
        "# \"demo/s external IP\" P -d 192.0.2.7 --dport 80 -j @EXT"
    );
    let none = drawn(&with_external_ip(plain()), &[]);
    assert_eq!(
        none.chain("filter", "KUBE-EXTERNAL-SERVICES"),
        ["# \"demo/s has no endpoints\" P -d 192.0.2.7 --dport 80 -j REJECT"]
    );
}

#[test]
fn ipt_032_ipt_048_outside_traffic_without_local_endpoints_is_dropped_but_pods_pass() {
    let text = drawn(&external_local(with_external_ip(plain())), THERE);
    assert_eq!(
        text.dispatch()[1],
        "# \"demo/s external IP\" P -d 192.0.2.7 --dport 80 -j @EXT"
    );
    assert_eq!(
        text.chain("filter", "KUBE-EXTERNAL-SERVICES"),
        ["# \"demo/s has no local endpoints\" P -d 192.0.2.7 --dport 80 -j DROP"]
    );
    assert_eq!(text.own("EXT").len(), 3);
    assert!(text.own("EXT")[2].starts_with("# \"route LOCAL traffic"));
}

fn guarded(ranges: &[&str]) -> Service {
    plain()
        .load_balancer(&[ip("1.2.3.4")])
        .source_ranges(ranges)
}

#[test]
fn ipt_033_ipt_034_ranges_put_a_firewall_before_the_address() {
    let text = drawn(&guarded(&["203.0.113.0/25"]), HERE);
    assert_eq!(
        text.dispatch()[1],
        "# \"demo/s loadbalancer IP\" P -d 1.2.3.4 --dport 80 -j @FW"
    );
    assert_eq!(
        text.chain("filter", "KUBE-PROXY-FIREWALL"),
        ["# \"demo/s traffic not accepted by @FW\" P -d 1.2.3.4 --dport 80 -j DROP"]
    );
    for (ranges, pods) in [(&[][..], HERE), (&["203.0.113.0/25"], &[][..])] {
        let text = drawn(&guarded(ranges), pods);
        assert!(text.chain("filter", "KUBE-PROXY-FIREWALL").is_empty());
        assert!(text.own("FW").is_empty());
    }
    assert_eq!(
        drawn(&guarded(&[]), HERE).dispatch()[1],
        "# \"demo/s loadbalancer IP\" P -d 1.2.3.4 --dport 80 -j @EXT"
    );
}

#[test]
fn ipt_035_the_firewall_lists_ranges_then_the_node_then_says_what_follows() {
    let rest = "# \"other traffic to demo/s will be dropped by KUBE-PROXY-FIREWALL\"";
    assert_eq!(
        drawn(&guarded(&["203.0.113.0/25", "192.168.0.0/24"]), HERE).own("FW"),
        [
            "# \"demo/s loadbalancer IP\" -s 203.0.113.0/25 -j @EXT",
            "# \"demo/s loadbalancer IP\" -s 192.168.0.0/24 -j @EXT",
            "# \"demo/s loadbalancer IP\" -s 1.2.3.4 -j @EXT",
            rest,
        ]
    );
    assert_eq!(
        drawn(&guarded(&["203.0.113.0/25"]), HERE).own("FW"),
        [
            "# \"demo/s loadbalancer IP\" -s 203.0.113.0/25 -j @EXT",
            rest
        ]
    );
}

#[test]
fn ipt_036_ipt_037_ranges_for_everybody_or_another_family_guard_nothing() {
    for ranges in [&["10.0.0.0/8", "0.0.0.0/0"][..], &["2001:db8::/32"]] {
        assert!(drawn(&guarded(ranges), HERE).own("FW").is_empty());
    }
}

#[test]
fn ipt_039_ipt_040_a_node_port_answers_on_any_address() {
    let text = drawn(&plain().node_port(30001), HERE);
    assert_eq!(
        text.chain("nat", "KUBE-NODEPORTS"),
        [
            "# demo/s P -d 127.0.0.0/8 --dport 30001 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j @EXT",
            "# demo/s P --dport 30001 -j @EXT",
        ]
    );
}

#[test]
fn ipt_041_a_node_port_without_endpoints_refuses_on_local_addresses() {
    let text = drawn(&plain().node_port(30001), &[]);
    assert_eq!(
        text.chain("filter", "KUBE-EXTERNAL-SERVICES"),
        ["# \"demo/s has no endpoints\" -m addrtype --dst-type LOCAL P --dport 30001 -j REJECT"]
    );
    let text = drawn(&external_local(plain().node_port(30001)), THERE);
    assert_eq!(
        text.chain("filter", "KUBE-EXTERNAL-SERVICES"),
        [
            "# \"demo/s has no local endpoints\" -m addrtype --dst-type LOCAL P --dport 30001 -j DROP"
        ]
    );
}

#[test]
fn ipt_042_health_checks_are_accepted_without_endpoints_and_always_over_tcp() {
    let mut service = external_local(guarded(&[]));
    service.health_check_field = Port::new(30000);
    service.ports[0].protocol = Protocol::Udp;
    assert_eq!(
        drawn(&service, &[]).chain("filter", "KUBE-NODEPORTS"),
        ["# \"demo/s health check node port\" P --dport 30000 -j ACCEPT"]
    );
    service.kind = ServiceType::NodePort;
    assert!(
        drawn(&service, &[])
            .chain("filter", "KUBE-NODEPORTS")
            .is_empty()
    );
}

fn masquerading(settings: Settings) -> Vec<String> {
    let mut cluster = Cluster::with(settings);
    cluster.both(&plain(), 8080, &[(ip("10.180.0.1"), true)]);
    let mut rules = text(&mut cluster).own("SVC");
    assert_eq!(
        rules.pop().unwrap(),
        "# \"demo/s -> 10.180.0.1:8080\" -j @1"
    );
    rules
}

#[test]
fn ipt_043_everybody_may_be_masqueraded() {
    let all = Settings {
        masquerade_all: true,
        ..settings(&["10.0.0.0/8"])
    };
    assert_eq!(
        masquerading(all),
        ["# \"demo/s cluster IP\" P -d 172.30.0.1 --dport 80 -j KUBE-MARK-MASQ"]
    );
}

#[test]
fn ipt_044_clients_outside_of_pods_are_masqueraded() {
    let with = |detect_local| Settings {
        detect_local,
        ..Settings::default()
    };
    for (detect, wanted) in [
        (
            DetectLocal::ClusterCidr(["10.0.0.0/8".parse().unwrap()].into()),
            "! -s 10.0.0.0/8",
        ),
        (DetectLocal::BridgeInterface("cni0".into()), "! -i cni0"),
        (
            DetectLocal::InterfaceNamePrefix("veth".into()),
            "! -i veth+",
        ),
    ] {
        assert_eq!(
            masquerading(with(detect)),
            [format!(
                "# \"demo/s cluster IP\" P -d 172.30.0.1 --dport 80 {wanted} -j KUBE-MARK-MASQ"
            )]
        );
    }
}

#[test]
fn ipt_045_ipt_049_without_a_way_to_tell_pods_nobody_is_masqueraded() {
    assert!(masquerading(settings(&["fd00::/64"])).is_empty());
    let mut cluster = Cluster::with(settings(&[]));
    let local = external_local(with_external_ip(plain()));
    cluster.both(&local, 8080, &[(ip("10.180.0.1"), true)]);
    let rules = text(&mut cluster).own("EXT");
    assert!(
        rules[0].starts_with("# \"masquerade LOCAL traffic"),
        "{rules:?}"
    );
}

#[test]
fn ipt_046_outside_traffic_to_the_whole_cluster_is_masqueraded() {
    assert_eq!(
        drawn(&with_external_ip(plain()), BOTH).own("EXT"),
        [
            "# \"masquerade traffic for demo/s external destinations\" -j KUBE-MARK-MASQ",
            "-j @SVC",
        ]
    );
}

#[test]
fn ipt_047_ipt_056_outside_traffic_to_this_node_keeps_its_source() {
    let text = drawn(
        &internal_local(external_local(with_external_ip(plain()))),
        BOTH,
    );
    let here = "for demo/s external destinations\" -m addrtype --src-type LOCAL";
    assert_eq!(
        text.own("EXT"),
        [
            "# \"pod traffic for demo/s external destinations\" -s 10.0.0.0/8 -j @SVC".to_owned(),
            format!("# \"masquerade LOCAL traffic {here} -j KUBE-MARK-MASQ"),
            format!("# \"route LOCAL traffic {here} -j @SVC"),
            "-j @SVL".to_owned(),
        ]
    );
    // Both policies are Local, but pods and the node reach the others from here.
    assert_eq!(text.own("SVC").len(), 2);
    assert_eq!(text.own("SVL").len(), 2);
}

#[test]
fn ipt_050_ipt_051_endpoints_are_chosen_evenly_in_the_order_of_text() {
    let text = drawn(
        &plain(),
        &[("10.0.0.2", false), ("10.0.0.10", true), ("10.0.0.1", true)],
    );
    assert_eq!(
        text.own("SVC")[1..],
        [
            "# \"demo/s -> 10.0.0.10:8080\" -m statistic --mode random --probability 0.3333333333 -j @1",
            "# \"demo/s -> 10.0.0.1:8080\" -m statistic --mode random --probability 0.5000000000 -j @2",
            "# \"demo/s -> 10.0.0.2:8080\" -j @3",
        ]
    );
}

#[test]
fn ipt_052_ipt_053_ipt_054_ipt_055_clients_return_to_their_endpoint() {
    let text = drawn(&plain().affinity(600), BOTH);
    let remembered = |number: u8| {
        let chain = &text.endpoints()[usize::from(number) - 1];
        format!("-m recent --name {chain} --rcheck --seconds 600 --reap")
            .replace(chain, &format!("@{number}"))
    };
    assert_eq!(
        text.own("SVC")[1..],
        [
            format!("# \"demo/s -> 10.180.0.1:8080\" {} -j @1", remembered(1)),
            format!("# \"demo/s -> 10.180.1.1:8080\" {} -j @2", remembered(2)),
            "# \"demo/s -> 10.180.0.1:8080\" -m statistic --mode random --probability 0.5000000000 -j @1".to_owned(),
            "# \"demo/s -> 10.180.1.1:8080\" -j @2".to_owned(),
        ]
    );
    assert_eq!(
        text.chain("nat", &text.endpoints()[0]),
        [
            "# demo/s -s 10.180.0.1 -j KUBE-MARK-MASQ",
            "# demo/s -m recent --name @1 --set P -j DNAT --to-destination 10.180.0.1:8080",
        ]
    );
    let plain = drawn(&plain(), HERE);
    assert_eq!(
        plain.chain("nat", &plain.endpoints()[0])[1],
        "# demo/s P -j DNAT --to-destination 10.180.0.1:8080"
    );
}

/// Endpoints of the Service, changed before they are told.
fn changed(pods: &[(&str, bool)], change: impl Fn(&mut Slice)) -> Slice {
    let pods: Vec<_> = pods.iter().map(|(pod, local)| (ip(pod), *local)).collect();
    let mut slice = slice(&plain(), 8080, &pods);
    change(&mut slice);
    slice
}

#[test]
fn ipt_057_ipt_058_ipt_059_each_pool_has_its_own_endpoints() {
    let service = external_local(with_external_ip(plain()));
    let mut cluster = cluster();
    cluster
        .node(node("here").at(ip("192.168.0.2")))
        .service(&service);
    // The local one is shutting down: outside traffic still goes there, inside traffic does not.
    cluster.slice(changed(BOTH, |slice| {
        slice.endpoints[0].ready = false;
        slice.endpoints[0].terminating = true;
    }));
    let drain = text(&mut cluster);
    assert_eq!(
        drain.own("SVC")[1..],
        ["# \"demo/s -> 10.180.1.1:8080\" -j @2"]
    );
    assert_eq!(drain.own("SVL"), ["# \"demo/s -> 10.180.0.1:8080\" -j @1"]);
    assert_eq!(drain.endpoints().len(), 2);
    // Hints are about the whole cluster's endpoints only.
    cluster.slice(changed(BOTH, |slice| {
        slice.endpoints[0].zone_hints = Some([Box::from("elsewhere")].into());
        slice.endpoints[1].zone_hints = Some([Box::from("here")].into());
    }));
    let hinted = text(&mut cluster);
    assert_eq!(
        hinted.own("SVC")[1..],
        ["# \"demo/s -> 10.180.1.1:8080\" -j @2"]
    );
    assert_eq!(hinted.own("SVL"), ["# \"demo/s -> 10.180.0.1:8080\" -j @1"]);
}

#[test]
fn ipt_069_ipt_070_remarks_about_single_endpoints_end_above_a_thousand() {
    let many = |count: u16| {
        let pods: Vec<_> = (0..count)
            .map(|n| {
                let [high, low] = n.to_be_bytes();
                (IpAddr::from([10, 1, high, low]), false)
            })
            .collect();
        let mut cluster = cluster();
        cluster.both(&with_external_ip(plain()), 8080, &pods);
        // Counted whatever their condition, and per Service port.
        text(&mut cluster)
    };
    let small = many(1000);
    assert!(small.own("SVC")[1].starts_with("# \"demo/s -> 10.1.0.0:8080\" -m statistic"));
    assert!(small.chain("nat", &small.endpoints()[0])[0].starts_with("# demo/s -s"));
    let large = many(1001);
    assert!(large.own("SVC")[1].starts_with("-m statistic"));
    assert!(large.chain("nat", &large.endpoints()[0])[0].starts_with("-s 10.1"));
    assert!(large.own("SVC")[0].starts_with("# \"demo/s cluster IP\""));
    assert!(large.own("EXT")[0].starts_with('#') && large.dispatch()[0].starts_with('#'));
}

#[test]
fn ipt_003_ipv6_endpoints_stand_in_brackets() {
    let mut cluster = cluster();
    let six = service("s", ip("fd00:30::1"));
    cluster.both(&six, 8080, &[(ip("fd00:1::5"), true)]);
    cluster.step();
    let text = Text(render(
        &cluster.desired,
        Family::V6,
        Options::default(),
        &[],
    ));
    assert_eq!(
        text.dispatch(),
        ["# \"demo/s cluster IP\" P -d fd00:30::1 --dport 80 -j @SVC"]
    );
    assert_eq!(
        text.own("SVC"),
        [
            "# \"demo/s cluster IP\" P -d fd00:30::1 --dport 80 ! -s fd00:1::/64 -j KUBE-MARK-MASQ",
            "# \"demo/s -> [fd00:1::5]:8080\" -j @1",
        ]
    );
    assert_eq!(
        text.chain("nat", &text.endpoints()[0]),
        [
            "# demo/s -s fd00:1::5 -j KUBE-MARK-MASQ",
            "# demo/s P -j DNAT --to-destination [fd00:1::5]:8080",
        ]
    );
}
