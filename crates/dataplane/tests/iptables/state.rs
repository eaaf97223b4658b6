//! What is in the kernel afterwards.

use ferrule_core::facts::{NodePortAddresses, Settings};
use ferrule_core::model::{Family, Port, TrafficPolicy};
use ferrule_dataplane::Dataplane as _;
use ferrule_kernel::xt::Flavour;

use crate::support::*;

/// One of each: balanced, refused, NodePort, load balancer with ranges, policies, affinity.
pub fn everything(scene: &mut Scene) {
    let family = scene.family;
    let a = |x, y| address(family, x, y);
    let ranges: &[&str] = match family {
        Family::V4 => &["192.0.2.0/24", "10.2.0.0/16"],
        Family::V6 => &["2001:db8::/64", "fd00::2:0/112"],
    };
    let pods = |x, y| [(a(1, x), false), (a(1, y), true)];
    scene.node(node("here").at(a(2, 1)));
    scene.both(&service("plain", a(96, 1)), 8080, &pods(1, 2));
    scene.service(service("none", a(96, 2)));
    let port = service("port", a(96, 3)).node_port(30003);
    scene.both(&port, 8080, &pods(1, 2));
    let lb = service("lb", a(96, 4))
        .load_balancer(&[a(9, 4)])
        .source_ranges(ranges);
    let lb = lb.node_port(30004).affinity(600);
    let three = [(a(1, 3), false), (a(1, 4), true), (a(1, 5), false)];
    scene.both(&lb, 8080, &three);
    let local = service("local", a(96, 5)).load_balancer(&[a(9, 5)]);
    let mut local = local.node_port(30005);
    local.external_policy_field = TrafficPolicy::Local;
    local.health_check_field = Port::new(30105);
    local.external_ips = [a(8, 5)].into();
    scene.both(&local, 8080, &pods(6, 7));
    let mut remote = service("remote", a(96, 6));
    remote.internal_policy = TrafficPolicy::Local;
    scene.both(&remote, 8080, &[(a(1, 6), false)]);
}

/// Rules in our own chains of a table.
fn rules_in(scene: &Scene, table: &str) -> usize {
    let saved = scene.saved();
    let rest = saved.split(&format!("*{table}\n")).nth(1).unwrap();
    let lines = rest.lines().take_while(|line| *line != "COMMIT");
    lines.filter(|line| line.starts_with("-A KUBE-")).count()
}

#[test]
fn ipt_084_rules_are_counted_as_they_come_and_go() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        let counted = |scene: &Scene| {
            for rules in &scene.last.rules {
                assert_eq!(rules.owned, rules_in(scene, rules.table), "{}", rules.table);
            }
            scene
                .last
                .rules
                .iter()
                .map(|rules| rules.written)
                .sum::<usize>()
        };
        assert!(scene.last.rules.is_empty());
        everything(&mut scene);
        scene.whole();
        let all: usize = scene.last.rules.iter().map(|rules| rules.owned).sum();
        assert_eq!(counted(&scene), all);
        // Of a Service that comes, only its own rules are written.
        scene.service(service("more", address(family, 96, 7)));
        scene.step();
        assert_eq!(counted(&scene), 1);
        scene.no_service("lb");
        scene.step();
        assert_eq!(counted(&scene), 0);
    });
}

/// Whether the kernel has exactly what it would have after a fresh start.
pub fn agrees_with_fresh(scene: &mut Scene) {
    let found = scene.saved();
    for table in ["filter", "nat", "mangle"] {
        scene.iptables(&format!("-t {table} -F"));
        scene.iptables(&format!("-t {table} -X"));
    }
    assert!(scene.whole() > 0);
    assert_eq!(found, scene.saved());
}

#[test]
fn ipt_094_what_is_right_already_is_not_written_again() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        assert!(scene.whole() > 50);
        assert_eq!(scene.whole(), 0);
        scene.restart();
        assert_eq!(scene.whole(), 0);
        // The first delta after a start looks at everything.
        scene.restart();
        assert_eq!(scene.step(), 0);
    });
}

#[test]
fn deltas_lead_to_the_same_as_a_fresh_start() {
    everywhere(|family, flavour| {
        let a = |x, y| address(family, x, y);
        let mut scene = Scene::new(family, flavour);
        scene.whole();
        everything(&mut scene);
        assert!(scene.step() > 10);
        assert_eq!(scene.step(), 0);
        agrees_with_fresh(&mut scene);
        // Endpoints come and go, a Service goes, another one loses all endpoints.
        let plain = service("plain", a(96, 1));
        let pods = [(a(1, 9), true), (a(1, 2), true), (a(1, 1), true)];
        let lb = service("lb", a(96, 4));
        scene.slice(slice(&plain, 8080, &pods)).no_service("port");
        scene.slice(slice(&lb, 8080, &[]));
        assert!(scene.step() > 0);
        agrees_with_fresh(&mut scene);
        let port = service("port", a(96, 3)).node_port(30003);
        scene.slice(slice(&lb, 8080, &[(a(1, 4), true)]));
        scene.both(&port, 8080, &[]).slice(slice(&plain, 8080, &[]));
        assert!(scene.step() > 0);
        agrees_with_fresh(&mut scene);
        for name in ["plain", "none", "port", "lb", "local", "remote"] {
            scene.no_service(name);
        }
        scene.step();
        agrees_with_fresh(&mut scene);
        let saved = scene.saved();
        assert!(
            !saved.contains("KUBE-SVC-") && !saved.contains("demo/"),
            "{saved}"
        );
    });
}

#[test]
fn ipt_065_ipt_067_one_endpoint_writes_its_service_and_nothing_else() {
    everywhere(|family, flavour| {
        let a = |x, y| address(family, x, y);
        let mut scene = Scene::new(family, flavour);
        scene.whole();
        for number in 1..=60 {
            let other = service(&format!("s{number}"), a(96, number));
            scene.both(&other, 8080, &[(a(1, 1), false), (a(1, 2), false)]);
        }
        scene.step();
        let one = service("s30", a(96, 30));
        let pods = [(a(1, 1), false), (a(1, 3), false)];
        scene.slice(slice(&one, 8080, &pods));
        // The service's chain (declared, masqueraded, two endpoints), the new endpoint's (declared,
        // two rules), the old one's (emptied, removed).
        assert_eq!(scene.step(), 4 + 3 + 2);
        // The last endpoint goes: a refusal comes, the way there goes, and three chains.
        scene.slice(slice(&one, 8080, &[]));
        assert_eq!(scene.step(), 1 + 1 + 3 * 2);
        scene.slice(slice(&one, 8080, &pods[..1]));
        assert_eq!(scene.step(), 1 + 1 + 3 + 3);
        agrees_with_fresh(&mut scene);
    });
}

#[test]
fn ipt_066_a_change_of_one_port_leaves_the_other_ports_alone() {
    everywhere(|family, flavour| {
        let a = |x, y| address(family, x, y);
        let mut scene = Scene::new(family, flavour);
        let mut two = service("two", a(96, 1)).port("web", 80);
        let more = two.clone().port("metrics", 9090);
        two.ports = [two.ports[0].clone(), more.ports[0].clone()].into();
        let pods = [(a(1, 1), false), (a(1, 2), true)];
        scene.both(&two, 8080, &pods);
        scene.whole();
        let chains = |scene: &Scene, port: &str| {
            let saved = scene.saved();
            let lines = saved.lines().filter(|line| line.contains(port));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let (web, metrics) = (chains(&scene, "two:web"), chains(&scene, "two:metrics"));
        // One port moves: in its chain two endpoints take the place of two others.
        let mut moved = slice(&two, 8080, &pods);
        moved.ports[1].port = Port::new(9191).unwrap();
        scene.slice(moved);
        let one_port = 4 + 2 * 3 + 2 * 2;
        assert_eq!(scene.step(), one_port);
        assert_eq!(chains(&scene, "two:web"), web);
        assert_ne!(chains(&scene, "two:metrics"), metrics);
        agrees_with_fresh(&mut scene);
    });
}

#[test]
fn ipt_014_ipt_092_rules_of_others_stay() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        for rule in [
            "-N FOREIGN",
            "-A FOREIGN -j RETURN",
            "-A INPUT -j FOREIGN",
            "-t nat -N KUBE-KUBELET-CANARY",
            "-t nat -A POSTROUTING -p tcp -j MASQUERADE",
        ] {
            scene.iptables(rule);
        }
        scene.whole();
        let before = scene.saved();
        let of = |text: &str, start: &str| {
            let lines = text.lines().filter(|line| line.starts_with(start));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        // Ours were put before theirs.
        let input = of(&before, "-A INPUT ");
        assert_eq!(input.len(), 5);
        assert!(input[4].ends_with("-j FOREIGN"));
        // Moved and foreign rules among the jumps change nothing.
        scene.iptables("-I INPUT 2 -p udp -j FOREIGN");
        scene.iptables("-D INPUT -j KUBE-FIREWALL");
        scene.iptables("-A INPUT -j KUBE-FIREWALL");
        let moved = scene.saved();
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.saved(), moved);
        scene.dataplane.remove().unwrap();
        let after = scene.saved();
        for part in [
            "-A FOREIGN -j RETURN",
            "-A INPUT -j FOREIGN",
            "KUBE-KUBELET-CANARY",
            "-j MASQUERADE",
        ] {
            assert!(after.contains(part), "{part} is not in\n{after}");
        }
    });
}

#[test]
fn foreign_rules_between_ours_are_removed() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        scene.whole();
        let before = scene.saved();
        scene.iptables("-t nat -I KUBE-SERVICES 3 -p udp -j ACCEPT");
        scene.iptables("-I KUBE-FORWARD -j DROP");
        let own = before
            .lines()
            .find_map(|l| l.strip_prefix(":KUBE-SVC-"))
            .unwrap();
        let own = own.split(' ').next().unwrap();
        scene.iptables(&format!("-t nat -F KUBE-SVC-{own}"));
        scene.iptables("-t nat -D PREROUTING 1");
        assert!(scene.whole() > 0);
        assert_eq!(scene.saved(), before);
    });
}

#[test]
fn a_delta_that_meets_foreign_changes_repairs_them() {
    everywhere(|family, flavour| {
        let a = |x, y| address(family, x, y);
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        scene.whole();
        // Somebody deletes a rule that we are about to delete.
        scene.iptables("-t nat -F KUBE-SERVICES");
        let plain = service("plain", a(96, 1));
        scene.slice(slice(&plain, 8080, &[]));
        scene.step();
        agrees_with_fresh(&mut scene);
    });
}

#[test]
fn ipt_078_a_flush_of_any_table_is_noticed_and_repaired() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        assert!(!scene.is_intact());
        scene.whole();
        assert!(scene.is_intact());
        let before = scene.saved();
        for commands in [
            &["-t nat -F"][..],
            &["-F"],
            &["-t nat -F", "-t nat -X"],
            &["-F", "-X"],
            &["-t mangle -X"],
        ] {
            for command in commands {
                scene.iptables(command);
            }
            assert!(!scene.is_intact(), "{commands:?}");
            assert!(scene.whole() > 0);
            assert_eq!(scene.saved(), before);
            assert!(scene.is_intact());
        }
    });
}

#[test]
fn ipt_086_ipt_087_cleanup_leaves_only_what_is_not_ours() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        scene.whole();
        assert!(scene.dataplane.remove().unwrap().steps > 50);
        let saved = scene.saved();
        let ours: Vec<_> = saved
            .lines()
            .filter(|line| line.contains("KUBE-"))
            .collect();
        let kept = [
            ":KUBE-FIREWALL -",
            "-A INPUT -j KUBE-FIREWALL",
            "-A OUTPUT -j KUBE-FIREWALL",
        ];
        assert_eq!(ours[..3], kept);
        let martian = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
                       \"block incoming localnet connections\" -m conntrack ! --ctstate \
                       RELATED,ESTABLISHED,DNAT -j DROP";
        match family {
            Family::V4 => assert_eq!(ours[3..], [martian]),
            Family::V6 => assert_eq!(ours.len(), 3),
        }
        assert_eq!(scene.dataplane.remove().unwrap().steps, 0);
    });
}

#[test]
fn ipt_062_node_ports_answer_on_the_addresses_that_there_are() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let addresses = NodePortAddresses::parse(&["192.0.2.0/24"]).unwrap();
            let chosen = Settings {
                node_port_addresses: addresses,
                ..settings(&["10.1.0.0/16"])
            };
            let mut scene = Scene::with(Family::V4, flavour, chosen);
            run("ip", &["addr", "add", "192.0.2.7/32", "dev", "lo"]);
            everything(&mut scene);
            scene.whole();
            let tail = |scene: &Scene| {
                let saved = scene.saved();
                let lines = saved
                    .lines()
                    .filter(|l| l.contains("must be the last rule"));
                lines
                    .map(|line| line.split(' ').nth(3).unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            assert_eq!(tail(&scene), ["192.0.2.7/32"]);
            // No localhost among them, so no door to it either.
            assert!(!scene.saved().contains("localnet"));
            // Addresses are looked at in every sync.
            run("ip", &["addr", "add", "192.0.2.3/32", "dev", "lo"]);
            assert_eq!(scene.step(), 3);
            assert_eq!(tail(&scene), ["192.0.2.3/32", "192.0.2.7/32"]);
            assert_eq!(scene.whole(), 0);
        });
    }
}

#[test]
fn a_new_pod_network_redraws_everything() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let mut scene = Scene::new(Family::V4, flavour);
            everything(&mut scene);
            scene.whole();
            scene.settings(settings(&["10.77.0.0/16"]));
            assert!(scene.step() > 0);
            assert!(scene.saved().contains("! -s 10.77.0.0/16"));
            assert!(!scene.saved().contains("! -s 10.1.0.0/16"));
            agrees_with_fresh(&mut scene);
        });
    }
}

#[test]
fn the_holder_of_a_contested_address_comes_first() {
    in_namespace(|| {
        let mut scene = Scene::new(Family::V4, Flavour::Nft);
        let a = |x, y| address(Family::V4, x, y);
        let mut one = service("a", a(96, 1));
        one.external_ips = [a(8, 1)].into();
        one.created = 2;
        let mut other = service("b", a(96, 2));
        other.external_ips = [a(8, 1)].into();
        other.created = 1;
        scene.both(&one, 8080, &[(a(1, 1), false)]);
        scene.whole();
        scene.both(&other, 8080, &[(a(1, 2), false)]);
        scene.step();
        let saved = scene.saved();
        let claims = saved.lines().filter(|line| line.contains("external IP"));
        let claims: Vec<_> = claims.collect();
        assert_eq!(claims.len(), 2);
        assert!(claims[0].contains("demo/b") && claims[1].contains("demo/a"));
        agrees_with_fresh(&mut scene);
    });
}

/// A setting of the network that the calling thread is in.
fn setting(name: &str) -> std::path::PathBuf {
    std::path::Path::new("/proc/sys/net").join(name)
}

#[test]
fn ipt_026_localhost_is_routed_where_node_ports_answer_on_it() {
    for (addresses, wanted) in [(&[][..], "1\n"), (&["192.0.2.0/24"], "0\n")] {
        in_namespace(move || {
            let chosen = Settings {
                node_port_addresses: NodePortAddresses::parse(addresses).unwrap(),
                ..settings(&["10.1.0.0/16"])
            };
            let mut scene = Scene::with(Family::V4, Flavour::Nft, chosen);
            scene.whole();
            let value = std::fs::read_to_string(setting("ipv4/conf/all/route_localnet"));
            assert_eq!(value.unwrap(), wanted);
        });
    }
}

#[test]
fn ipt_022_a_liberal_kernel_keeps_invalid_packets() {
    for (liberal, wanted) in [("0", true), ("1", false)] {
        in_namespace(move || {
            let file = setting("netfilter/nf_conntrack_tcp_be_liberal");
            std::fs::write(file, liberal).unwrap();
            let mut scene = Scene::new(Family::V4, Flavour::Nft);
            scene.whole();
            assert_eq!(scene.saved().contains("--ctstate INVALID"), wanted);
        });
    }
}
