//! What is in the kernel after syncs, restarts and external changes.

use std::sync::Arc;

use ferrule_core::model::{Family, Slice};
use ferrule_dataplane::host::Host;
use ferrule_dataplane::ipvs::{Options, Timeouts, prepare};
use ferrule_kernel::ipset::Type;
use ferrule_kernel::ipvs::Ipvs as Kernel;
use ferrule_testbed::cluster::{eps, service};
use ferrule_testbed::local;

use crate::support::*;

/// Services with every kind of address.
pub fn everything(lab: &Lab, scene: &mut Scene) {
    let ranges = match lab.family {
        Family::V4 => ["203.0.113.0/24", "203.0.114.7/32"],
        Family::V6 => ["2001:db8:1::/64", "2001:db8:2::7/128"],
    };
    scene
        .service(lab.full("all", 1).source_ranges(&ranges))
        .slice(lab.pods("all", &[1, 2]))
        .service(local(lab.full("local", 2)).affinity(600))
        .slice(lab.pods("local", &[1, 2]))
        .service(lab.full("none", 3));
}

#[test]
fn ipvs_074_an_unchanged_cluster_and_a_restart_write_nothing() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        assert!(scene.whole() > 100);
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.step(), 0);
        scene.restart();
        assert_eq!(scene.whole(), 0);
        assert!(!scene.is_changed());
    });
}

#[test]
fn ipvs_025_all_sets_exist_also_when_they_are_empty() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        scene.whole();
        let sets = scene.sets();
        assert_eq!(sets.len(), 19);
        let kinds = |kind| sets.iter().filter(|set| set.kind == Some(kind)).count();
        assert_eq!(kinds(Type::BitmapPort), 5);
        assert_eq!(kinds(Type::HashIpPortIp), 2);
        assert_eq!(kinds(Type::HashIpPortNet), 1);
        assert_eq!(kinds(Type::HashIp), 1);
        let hashes = sets.iter().filter(|set| set.kind != Some(Type::BitmapPort));
        for set in hashes {
            assert_eq!(set.max_entries, 1 << 20, "{}", set.name);
        }
    });
}

#[test]
fn sets_of_kube_proxy_are_replaced_by_larger_ones_while_rules_name_them() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        let (family, name, chain) = match lab.family {
            Family::V4 => ("inet", "KUBE-CLUSTER-IP", "iptables"),
            Family::V6 => ("inet6", "KUBE-6-CLUSTER-IP", "ip6tables"),
        };
        scene.run(
            "ipset",
            &format!("create {name} hash:ip,port family {family} maxelem 65536"),
        );
        scene.run(
            chain,
            &format!("-A INPUT -m set --match-set {name} dst,dst -j ACCEPT"),
        );
        everything(lab, &mut scene);
        scene.whole();
        let sets = scene.sets();
        let set = sets.iter().find(|set| set.name == name).unwrap();
        assert_eq!((set.max_entries, set.entries), (1 << 20, 3 * 3));
        assert_eq!(sets.len(), 19);
    });
}

#[test]
fn ipvs_003_a_scheduler_that_is_not_there_is_named_and_the_trial_leaves_nothing() {
    everywhere(|lab| {
        let family = lab.family;
        let error = lab.node.run(move || {
            let options = Options {
                scheduler: Arc::from("nonsense"),
                ..Options::default()
            };
            ferrule_dataplane::ipvs::Ipvs::open(family, options).unwrap_err()
        });
        let text = error.to_string();
        assert!(text.starts_with("can't use the IPVS proxier: "), "{text}");
        assert!(text.contains("module ip_vs_nonsense"), "{text}");
        assert!(Scene::new(lab).servers().is_empty());
    });
}

#[test]
fn ipvs_009_only_timeouts_that_are_not_zero_are_set() {
    everywhere(|lab| {
        let (before, after) = lab.node.run(|| {
            let mut kernel = Kernel::open().unwrap().unwrap();
            let before = kernel.timeouts().unwrap();
            let only_tcp = Timeouts {
                tcp: 100,
                ..Timeouts::default()
            };
            let notes = prepare(&Host::default(), false, &only_tcp).unwrap();
            assert_eq!(notes, [] as [&str; 0]);
            (before, kernel.timeouts().unwrap())
        });
        let expected = Timeouts { tcp: 100, ..before };
        assert_eq!(after, expected);
    });
}

#[test]
fn a_service_whose_scheduler_is_not_there_gets_the_default_and_the_others_are_untouched() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        let mut odd = lab.full("odd", 1);
        odd.scheduler = Some("nonsense".into());
        let mut fine = lab.full("fine", 2);
        fine.scheduler = Some("lc".into());
        scene
            .service(odd)
            .slice(lab.pods("odd", &[1]))
            .service(fine)
            .slice(lab.pods("fine", &[1]));
        let applied = scene.try_whole().unwrap();
        assert!(!applied.refused.is_empty());
        for refused in &applied.refused {
            assert_eq!(refused.key.service.name(), "odd");
            assert!(
                refused.message.contains("so rr is used"),
                "{}",
                refused.message
            );
        }
        let servers = scene.servers();
        for (server, destinations) in servers.values() {
            assert!(["rr", "lc"].contains(&server.scheduler.as_str()));
            assert_eq!(destinations.len(), 1);
        }
        assert!(servers.values().any(|(server, _)| server.scheduler == "lc"));
    });
}

#[test]
fn ipvs_024_ipvs_027_ipvs_035_what_is_foreign_goes_but_for_chains_and_rules_of_others() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let (set, entry, address, iptables) = match lab.family {
            Family::V4 => (
                "KUBE-CLUSTER-IP",
                "10.9.9.9,tcp:1",
                "10.9.9.9/32",
                "iptables",
            ),
            Family::V6 => (
                "KUBE-6-CLUSTER-IP",
                "fd00::9:99,tcp:1",
                "fd00::9:99/128",
                "ip6tables",
            ),
        };
        scene.run("ipset", &format!("add {set} {entry}"));
        scene.run("ip", &format!("address add {address} dev kube-ipvs0 nodad"));
        scene.run(iptables, "-t nat -A KUBE-SERVICES -j ACCEPT");
        scene.run(iptables, "-N OTHER");
        scene.run(iptables, "-I INPUT -j OTHER");
        assert!(scene.is_changed());
        assert_eq!(
            scene.whole(),
            1 + 1 + 13,
            "entry, address, and one chain with its rules"
        );
        assert_eq!(scene.whole(), 0);
        assert!(!scene.is_changed());
        assert!(scene.run(iptables, "-S INPUT").contains("-j OTHER"));
    });
}

#[test]
fn ipvs_068_ipvs_069_virtual_servers_of_others_stay_where_they_are_excluded_or_for_marks() {
    everywhere(|lab| {
        let (inside, outside, excluded) = match lab.family {
            Family::V4 => ("203.0.113.50:80", "203.0.112.50:80", "203.0.113.0/24"),
            Family::V6 => (
                "[2001:db8:1::1]:80",
                "[2001:db8:2::1]:80",
                "2001:db8:1::/64",
            ),
        };
        let options = Options {
            excluded: vec![excluded.parse().unwrap()],
            ..Options::default()
        };
        let mut scene = Scene::with(lab, options);
        for server in [inside, outside] {
            scene.run("ipvsadm", &format!("-A -t {server} -s rr"));
        }
        scene.run("ipvsadm", "-A -f 5 -s rr");
        everything(lab, &mut scene);
        scene.whole();
        let listed = scene.run("ipvsadm", "-S -n");
        assert!(
            listed.contains(inside) && !listed.contains(outside),
            "{listed}"
        );
        assert!(listed.contains("-f 5"), "{listed}");
        assert_eq!(scene.whole(), 0);
        assert!(!scene.is_changed());
        // Only those that are not known to be others' go with the mode.
        scene.remove();
        let listed = scene.run("ipvsadm", "-S -n");
        assert!(
            listed.contains(inside) && listed.contains("-f 5"),
            "{listed}"
        );
        assert_eq!(scene.servers().len(), 1);
    });
}

#[test]
fn ipvs_067_after_a_restart_a_ready_endpoint_gets_connections_again() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let servers = scene.servers();
        let (key, (_, destinations)) = servers
            .iter()
            .find(|(_, (_, destinations))| destinations.len() == 2)
            .unwrap();
        let socket = std::net::SocketAddr::new(key.address, key.port);
        let option = match key.protocol {
            6 => "-t",
            17 => "-u",
            _ => "--sctp-service",
        };
        let first = destinations[0].destination;
        let first = std::net::SocketAddr::new(first.address, first.port);
        scene.run(
            "ipvsadm",
            &format!("-e {option} {socket} -r {first} -m -w 0"),
        );
        scene.restart();
        assert_eq!(scene.whole(), 1);
        let servers = scene.servers();
        let weights = servers[key]
            .1
            .iter()
            .map(|counted| counted.destination.weight);
        assert_eq!(weights.collect::<Vec<_>>(), [1, 1]);
    });
}

#[test]
fn ipvs_020_what_others_were_faster_with_is_no_failure() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        // Everything that the next change adds and deletes is there and gone already.
        scene.run("ipvsadm", "-C");
        assert!(scene.is_changed());
        scene.slice(lab.pods("all", &[1]));
        scene.step();
        assert_eq!(scene.whole(), 0);
        assert!(!scene.is_changed());
    });
}

#[test]
fn ipvs_021_ipvs_023_addresses_come_and_go_with_services() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let link = scene.run("ip", "-d link show kube-ipvs0");
        assert!(link.contains("dummy") && !link.contains(",UP"), "{link}");
        let addresses = |scene: &Scene| {
            let shown = scene.run("ip", "-o address show dev kube-ipvs0");
            shown.lines().filter(|line| !line.contains("fe80")).count()
        };
        let before = addresses(&scene);
        scene.no_service("none").step();
        // Its cluster IP, external IP and load balancer IP.
        assert_eq!(addresses(&scene), before - 3);
        assert_eq!(scene.whole(), 0);
        scene.no_service("all").no_service("local").step();
        assert_eq!(addresses(&scene), 0);
        assert!(scene.servers().is_empty());
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ipvs_046_a_node_address_that_comes_later_gets_node_ports() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let before = scene.servers().len();
        let address = match lab.family {
            Family::V4 => "10.77.0.1/32",
            Family::V6 => "fd00::77:1/128",
        };
        scene.run("ip", &format!("address add {address} dev lo nodad"));
        scene.step();
        // Three Services over three protocols.
        assert_eq!(scene.servers().len(), before + 9);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ipvs_028_a_source_range_of_one_address_is_not_written_again() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let shown = scene.run("ipset", "save");
        let single = match lab.family {
            Family::V4 => "203.0.114.7",
            Family::V6 => "2001:db8:2::7",
        };
        assert!(shown.contains(&format!(",{single}\n")), "{shown}");
        scene.restart();
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ipvs_075_everything_is_removed_and_rules_of_others_stay() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        let iptables = match lab.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        scene.run(iptables, "-A INPUT -j ACCEPT");
        let save = format!("{iptables}-save");
        let save: &'static str = save.leak();
        everything(lab, &mut scene);
        scene.whole();
        assert!(scene.remove() > 100);
        assert!(scene.servers().is_empty());
        assert_eq!(scene.sets(), []);
        let left = scene.run(save, "-t filter") + &scene.run(save, "-t nat");
        assert!(
            !left.contains("KUBE-") && left.contains("-A INPUT -j ACCEPT"),
            "{left}"
        );
        assert_eq!(scene.remove(), 0);
    });
}

#[test]
fn ipvs_031_jumps_stand_once_each_before_rules_of_others() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        let iptables = match lab.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        scene.run(iptables, "-A INPUT -j ACCEPT");
        scene.whole();
        scene.restart();
        scene.whole();
        let input = scene.run(iptables, "-S INPUT");
        let targets: Vec<&str> = input
            .lines()
            .filter_map(|line| line.split(" -j ").nth(1))
            .collect();
        assert_eq!(
            targets,
            [
                "KUBE-IPVS-FILTER",
                "KUBE-PROXY-FIREWALL",
                "KUBE-NODE-PORT",
                "ACCEPT"
            ]
        );
    });
}

#[test]
fn ipvs_004_a_scheduler_that_is_in_use_is_not_tried() {
    everywhere(|lab| {
        let scene = Scene::new(lab);
        // Where a trial would be made, and delete what is there.
        let trial = "198.51.100.0:20000";
        let open = || {
            let family = lab.family;
            lab.node.run(move || {
                drop(ferrule_dataplane::ipvs::Ipvs::open(family, Options::default()).unwrap());
            });
        };
        scene.run("ipvsadm", &format!("-A -t {trial} -s rr"));
        open();
        assert_eq!(scene.servers().len(), 1, "rr is in use");
        scene.run("ipvsadm", &format!("-E -t {trial} -s lc"));
        open();
        assert!(scene.servers().is_empty(), "rr was tried");
    });
}

#[test]
fn at_five_thousand_virtual_servers_a_change_touches_only_what_changed() {
    const MANY: u16 = 5000;
    in_family(Family::V4, |lab| {
        let address = |number: u16| -> std::net::IpAddr {
            let [high, low] = number.to_be_bytes();
            [10, 97, high, low].into()
        };
        let name = |number: u16| format!("web-{number}");
        let slice = |number: u16, pods: &[(std::net::IpAddr, bool)]| {
            let service = service(&name(number)).at(address(number));
            Slice::of(&service, 8080, &eps(pods))
        };
        let both = [(lab.here_ip(), true), (lab.far_ip(), false)];
        let mut scene = Scene::new(lab);
        for number in 1..=MANY {
            scene
                .service(service(&name(number)).at(address(number)))
                .slice(slice(number, &both));
        }
        scene.whole();
        let before = scene.servers();
        assert_eq!(before.len(), usize::from(MANY));
        // Less, more, and another one in the place of one: each is a step per destination.
        let other = (lab.pod_ip(), false);
        for (pods, steps) in [(&both[..1], 1), (&both[..], 1), (&[both[0], other], 2)] {
            scene.slice(slice(2500, pods));
            assert_eq!(scene.step(), steps, "{pods:?}");
        }
        let after = scene.servers();
        let changed = before
            .iter()
            .filter(|(key, server)| after[*key] != **server);
        let changed: Vec<_> = changed.map(|(key, _)| key.address).collect();
        assert_eq!(changed, [address(2500)]);
        scene.no_service(&name(2500));
        assert_eq!(scene.step(), 4, "server, address, and an entry for each");
        assert_eq!(scene.servers().len(), usize::from(MANY) - 1);
    });
}
