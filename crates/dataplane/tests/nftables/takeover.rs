//! kube-proxy and we over each other's table.
//!
//! What it does to a table is written down here as it sends it: its whole setup, then elements and
//! chains of its own. A test with the real program is in the lab.

use ferrule_dataplane::Dataplane as _;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use ferrule_core::model::Family;
use ferrule_testbed::{Answer, Kind, Lab, Protocol, feed, full, try_feed, word};

use crate::state::everything;
use crate::support::*;
use crate::twin::{Twin, assert_alike};

/// Base chains with type, hook and priority.
const BASES: [&str; 8] = [
    "filter-prerouting-pre-dnat filter prerouting -110",
    "filter-output-pre-dnat filter output -110",
    "filter-input filter input 0",
    "filter-forward filter forward 0",
    "filter-output filter output 0",
    "nat-prerouting nat prerouting -100",
    "nat-output nat output -100",
    "nat-postrouting nat postrouting 100",
];

const JUMPS: [(&str, &str); 11] = [
    ("filter-input", "ct state new jump nodeport-endpoints-check"),
    ("filter-input", "ct state new jump service-endpoints-check"),
    (
        "filter-forward",
        "ct state new jump service-endpoints-check",
    ),
    ("filter-output", "ct state new jump service-endpoints-check"),
    (
        "filter-prerouting-pre-dnat",
        "ct state new jump firewall-check",
    ),
    ("filter-output-pre-dnat", "ct state new jump firewall-check"),
    ("nat-output", "jump services"),
    ("nat-prerouting", "jump services"),
    ("nat-postrouting", "jump masquerading"),
    ("filter-forward", "ct state new jump cluster-ips-check"),
    ("filter-output", "ct state new jump cluster-ips-check"),
];

/// The rest of the setup; `T` is the table, `X` the family, `A` the type of an address.
const SETUP: &str = r#"
add set T hairpin-connections { type A . A . inet_proto . inet_service ; comment "service hairpin connections" ; }
add rule T masquerading mark and 0x00004000 != 0 mark set mark xor 0x00004000 masquerade fully-random
add rule T masquerading ct status dnat X saddr . X daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
add set T cluster-ips { type A ; comment "Active ClusterIPs" ; }
add rule T cluster-ips-check X daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
add set T nodeport-ips { type A ; comment "IPs that accept NodePort traffic" ; }
flush set T nodeport-ips
add element T nodeport-ips { NODE }
add map T no-endpoint-services { type A . inet_proto . inet_service : verdict ; comment "vmap to drop or reject packets to services with no endpoints" ; }
add map T no-endpoint-nodeports { type inet_proto . inet_service : verdict ; comment "vmap to drop or reject packets to service nodeports with no endpoints" ; }
add chain T reject-chain { comment "helper for @no-endpoint-services / @no-endpoint-nodeports" ; }
flush chain T reject-chain
add rule T reject-chain reject
add rule T service-endpoints-check X daddr . meta l4proto . th dport vmap @no-endpoint-services
add rule T nodeport-endpoints-check X daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
add map T firewall-ips { type A . inet_proto . inet_service : verdict ; comment "destinations that are subject to LoadBalancerSourceRanges" ; }
add rule T firewall-check X daddr . meta l4proto . th dport vmap @firewall-ips
add map T service-ips { type A . inet_proto . inet_service : verdict ; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic" ; }
add map T service-nodeports { type inet_proto . inet_service : verdict ; comment "NodePort traffic" ; }
add rule T services X daddr . meta l4proto . th dport vmap @service-ips
add rule T services X daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
"#;

/// A Service with affinity, source ranges and a NodePort, as it writes it.
const SERVICE: &str = r"
add element T hairpin-connections { POD . POD . tcp . 8080 }
add chain T endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080
flush chain T endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080
add chain T service-SSSSSSSS-demo/all/tcp/tcp
flush chain T service-SSSSSSSS-demo/all/tcp/tcp
add chain T external-SSSSSSSS-demo/all/tcp/tcp
flush chain T external-SSSSSSSS-demo/all/tcp/tcp
add element T cluster-ips { CIP }
add element T service-ips { CIP . tcp . 80 : goto service-SSSSSSSS-demo/all/tcp/tcp }
add chain T firewall-SSSSSSSS-demo/all/tcp/tcp
flush chain T firewall-SSSSSSSS-demo/all/tcp/tcp
add element T service-ips { VIP . tcp . 80 : goto external-SSSSSSSS-demo/all/tcp/tcp }
add element T firewall-ips { VIP . tcp . 80 : goto firewall-SSSSSSSS-demo/all/tcp/tcp }
add element T service-nodeports { tcp . 30001 : goto external-SSSSSSSS-demo/all/tcp/tcp }
add element T no-endpoint-nodeports { udp . 30009 : goto reject-chain }
add rule T external-SSSSSSSS-demo/all/tcp/tcp mark set mark or 0x00004000
add rule T external-SSSSSSSS-demo/all/tcp/tcp goto service-SSSSSSSS-demo/all/tcp/tcp
add rule T firewall-SSSSSSSS-demo/all/tcp/tcp X saddr != { NODE , POD } drop
add set T affinity-HHHHHHHH-demo/all/tcp/tcp__POD/8080 { type A ; flags dynamic,timeout ; timeout 600s ; }
add rule T service-SSSSSSSS-demo/all/tcp/tcp X saddr @affinity-HHHHHHHH-demo/all/tcp/tcp__POD/8080 goto endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080
add rule T service-SSSSSSSS-demo/all/tcp/tcp numgen random mod 1 vmap { 0 : goto endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080 }
add rule T endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080 update @affinity-HHHHHHHH-demo/all/tcp/tcp__POD/8080 { X saddr }
add chain T local-LLLLLLLL-demo/plain/tcp/tcp
add rule T local-LLLLLLLL-demo/plain/tcp/tcp meta l4proto tcp dnat X addr . port to numgen random mod 1 map { 0 : BARE . 8080 }
add rule T endpoint-HHHHHHHH-demo/all/tcp/tcp__POD/8080 meta l4proto tcp dnat to SOCKET
";

struct Words {
    family: Family,
    node: IpAddr,
    pod: IpAddr,
}

impl Words {
    fn fill(&self, text: &str) -> String {
        let family = self.family;
        let (x, a) = match self.family {
            Family::V4 => (word(family), "ipv4_addr"),
            Family::V6 => (word(family), "ipv6_addr"),
        };
        let pod = self.pod.to_string();
        // In names of chains kube-proxy writes dots for colons.
        let dots = pod.replace(':', ".");
        let pairs = [
            ("__POD", format!("__{dots}")),
            (
                "SOCKET",
                std::net::SocketAddr::new(self.pod, 8080).to_string(),
            ),
            ("BARE", pod.clone()),
            (" POD", format!(" {pod}")),
            ("NODE", self.node.to_string()),
            ("CIP", address(self.family, 96, 1).to_string()),
            ("VIP", address(self.family, 9, 1).to_string()),
        ];
        let mut filled = text.to_owned();
        for (from, to) in pairs {
            filled = filled.replace(from, &to);
        }
        let word = |part: &str| match part {
            "T" => format!("{x} {TABLE}"),
            "A" => a.to_owned(),
            "X" => x.to_owned(),
            part => part.to_owned(),
        };
        let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
        filled.lines().map(line).collect()
    }

    /// What it sends first when it starts.
    fn setup(&self) -> String {
        let mut text = String::from("add table T { comment \"rules for kube-proxy\" ; }\n");
        let bases = BASES.map(|base| {
            let parts: Vec<_> = base.split(' ').collect();
            (parts[0], parts[1], parts[2], parts[3])
        });
        for (name, ..) in bases {
            text += &["add chain T ", name, "\ndelete chain T ", name, "\n"].concat();
        }
        for (name, kind, hook, priority) in bases {
            let place = format!("{{ type {kind} hook {hook} priority {priority} ; }}");
            text += &[
                "add chain T ",
                name,
                " ",
                &place,
                "\nflush chain T ",
                name,
                "\n",
            ]
            .concat();
        }
        let mut seen = Vec::new();
        for (from, rule) in JUMPS {
            let to = rule.rsplit(' ').next().unwrap();
            if !seen.contains(&to) {
                seen.push(to);
                text += &["add chain T ", to, "\nflush chain T ", to, "\n"].concat();
            }
            text += &["add rule T ", from, " ", rule, "\n"].concat();
        }
        self.fill(&(text + SETUP.trim_start()))
    }

    fn service(&self) -> String {
        self.fill(SERVICE.trim_start())
    }
}

#[test]
fn nft_084_kube_proxy_can_start_over_our_table_and_hand_it_back() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let words = Words {
            family,
            node: address(family, 2, 1),
            pod: address(family, 1, 1),
        };
        // Whether it may start at all, then its setup, twice as after two restarts.
        let probe = words.fill("add table T { comment \"test\" ; }\n");
        assert!(
            try_feed("nft", &["--check", "-f", "-"], &probe)
                .status
                .success()
        );
        for _ in 0..2 {
            feed("nft", &["-f", "-"], &words.setup());
        }
        // It removes elements that it does not know from its containers, and adds its own.
        let mut text = String::new();
        for set in [
            "set T cluster-ips",
            "map T service-ips",
            "map T firewall-ips",
            "map T no-endpoint-services",
            "map T no-endpoint-nodeports",
            "map T service-nodeports",
            "set T hairpin-connections",
        ] {
            text += &words.fill(&format!("flush {set}\n"));
        }
        feed("nft", &["-f", "-"], &(text + &words.service()));
        // Chains of ours have no slash in their name, so it never tries to delete them.
        let ours = before.chains.iter().map(|held| &held.object.name);
        assert!(ours.clone().all(|name| !name.contains('/')));
        let sets = before.sets.iter().map(|held| &held.object.name);
        assert!(sets.clone().all(|name| !name.starts_with("affinity-")));
        // And back.
        scene.restart();
        assert!(scene.whole() > 50);
        assert_alike(&scene.snapshot(), &before);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_085_we_start_over_the_table_of_kube_proxy_in_one_transaction() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, lab.by_pod_net());
        let family = scene.family;
        let words = Words {
            family,
            node: lab.out_ip(),
            pod: lab.here_ip(),
        };
        let text = words.setup() + &words.service();
        lab.node.run(move || feed("nft", &["-f", "-"], &text));
        // Its rules work, and somebody is connected.
        let (to, port) = lab.target(Kind::LoadBalancerIp, 1);
        let seen = lab.masqueraded(1);
        let ask = lab.ask(Protocol::Tcp, Kind::LoadBalancerIp, 1);
        assert_eq!(ask.put(&lab.out), Answer::Served { by: 1, seen });
        let mut stream = lab.out.run(move || TcpStream::connect((to, port)).unwrap());
        stream.read_exact(&mut [0; 2]).unwrap();
        let before = scene.snapshot().generation;
        scene
            .service(full(family, "all", 1))
            .slice(lab.pods("all", &[1]));
        assert!(scene.whole() > 50);
        let after = scene.snapshot();
        // One comes before and goes after: the table that stands in meanwhile.
        assert_eq!(after.generation, before + 3);
        let tables = lab.node.run(|| run("nft", &["list", "tables"]));
        assert_eq!(tables, format!("table {} {TABLE}\n", word(lab.family)));
        let chains = after.chains.iter().map(|held| &held.object.name);
        assert!(chains.clone().all(|name| !name.contains('/')));
        Twin::new(&scene).assert_like(&scene);
        assert_eq!(scene.whole(), 0);
        for protocol in Protocol::ALL {
            let ask = lab.ask(protocol, Kind::LoadBalancerIp, 1);
            assert_eq!(ask.put(&lab.out), Answer::Served { by: 1, seen });
        }
        // Whoever was connected still is.
        stream.write_all(b"still here?").unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"still here?") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
    });
}

#[test]
fn names_of_ours_with_other_types_are_replaced() {
    both(|family| {
        let words = Words {
            family,
            node: address(family, 2, 1),
            pod: address(family, 1, 1),
        };
        for foreign in [
            "add set T cluster-ips { type inet_service ; }",
            "add set T cluster-ips { type A ; flags interval ; }",
            "add set T cluster-ips { type A ; flags timeout ; }",
            "add map T service-ips { type A . inet_proto . inet_service : A ; }",
            "add set T service-ips { type A . inet_proto . inet_service ; }",
            "add map T ferrule-endpoints { type inet_service : verdict ; }",
            "add set T ferrule-affinity-x { type inet_service ; }",
            "add chain T services { type filter hook input priority 3 ; }",
            "add chain T pick-up-to-4 { type nat hook output priority 3 ; }",
            "add chain T filter-input { type filter hook input priority 0 ; policy drop ; }",
            "add chain T somebody",
        ] {
            let text = ["add table T\n", foreign, "\n"].concat();
            feed("nft", &["-f", "-"], &words.fill(&text));
            let mut scene = Scene::new(family);
            everything(&mut scene);
            scene.whole();
            Twin::new(&scene).assert_like(&scene);
            assert_eq!(scene.whole(), 0, "{foreign}");
            scene.dataplane.remove().unwrap();
        }
    });
}
