//! Plans, rules and elements, and a table of them in a real kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_core::desired::FrontendKind;
use ferrule_core::facts::{Connections, NodePortAddresses, Settings};
use ferrule_core::model::{Family, PortKey, Protocol, Service};
use ferrule_kernel::nft::{Data, Nft, Table, Verdict};
use ferrule_testbed::cluster::{Cluster, Objects, ep, http, ip, node, port, service};
use ferrule_testbed::{in_namespace, kernel, run, try_feed, word};
use proptest::prelude::*;

use super::names::{Container, TABLES};
use super::plan::{Served, Target, plan};
use super::relay::Class;
use super::render::{self, Drawing};
use super::table::{PortalTable, Redrawn};
use super::{Options, PortalsBy, chains, text};
use crate::xtables::rule::Rule;

/// A Service with every kind of address, and one endpoint here and one elsewhere.
fn full() -> Service {
    service("web")
        .external_ips(&["192.0.2.8"])
        .load_balancer(&["192.0.2.9"])
        .node_port(30080)
}

fn cluster(service: &Service) -> Cluster {
    let mut cluster = Cluster::new();
    cluster
        .node(node("here").at("192.0.2.1"))
        .serving(service, 8080, &[ep("10.1.0.1").local(), ep("10.1.0.2")])
        .step();
    cluster
}

/// What a Service has once its lanes are open, the internal one at port 40001.
fn served(cluster: &Cluster, service: &str) -> Served {
    let plan = plan(&cluster.exposure(service));
    let ports = [(Class::Internal, 40001), (Class::External, 40002)];
    let lanes = plan.lanes();
    Served {
        ports: ports
            .into_iter()
            .filter(|(class, _)| lanes.contains(class))
            .collect(),
        plan,
        ..Served::default()
    }
}

fn targets(served: &Served) -> Vec<(FrontendKind, Target, Option<Target>)> {
    let portals = served.plan.portals.iter();
    portals
        .map(|portal| (portal.kind, portal.target, portal.inside))
        .collect()
}

/// The rules of a Service as `iptables-save` prints them, with their chains.
fn saved(cluster: &Cluster, service: &str, options: &Options) -> Vec<String> {
    let facts = cluster.desired.facts(Family::V4);
    let context = chains::Context::new(Family::V4, facts, options);
    let key = cluster.exposure(service).key.clone();
    let rules = chains::rules(&key, &served(cluster, service), &context);
    let line = |chain: &str, rule: &Rule| {
        let mut line = chain.trim_start_matches("KUBE-").to_owned();
        rule.saved(Family::V4, &mut line);
        line
    };
    let chains = rules.shared.iter();
    chains
        .flat_map(|(((_, chain), _), rules)| {
            rules
                .iter()
                .map(|rule| line(chain.as_str(), rule))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn usp_058_a_policy_decides_per_class_which_endpoints_serve_and_whom() {
    use Target::{Drop, Lane};
    let all = served(&cluster(&full()), "web");
    assert!(
        targets(&all)
            .iter()
            .all(|(_, target, inside)| (*target, *inside) == (Lane, None))
    );
    let pools = |served: &Served| {
        let plan = &served.plan.backends;
        let words = |route: super::relay::Route| format!("{:?} {:?}", route.pool, route.inside);
        [words(plan.internal), words(plan.external)]
    };
    assert_eq!(pools(&all), ["Some(Cluster) Some(Cluster)"; 2]);

    let here = served(&cluster(&full().internal_local().external_local()), "web");
    assert_eq!(
        pools(&here),
        ["Some(Local) Some(Local)", "Some(Local) Some(Cluster)"]
    );

    let mut far = Cluster::new();
    let service = full().internal_local().external_local();
    far.serving(&service, 8080, &[ep("10.1.0.2")]).step();
    let far = served(&far, "web");
    for (kind, target, inside) in targets(&far) {
        // Clients in the cluster are not bound by a policy about outside traffic.
        let expected = match kind {
            FrontendKind::ClusterIp => (Drop, None),
            _ => (Drop, Some(Lane)),
        };
        assert_eq!((target, inside), expected, "{kind:?}");
    }
    assert_eq!(far.plan.lanes(), BTreeSet::from([Class::External]));
    assert!(far.plan.keeps(Class::Internal), "its policy may change");
}

#[test]
fn usp_059_source_ranges_bind_load_balancer_addresses_only() {
    let sources = |service: &Service| served(&cluster(service), "web").plan.backends.sources;
    assert!(sources(&full()).is_empty());
    let guarded = sources(&full().source_ranges(&["198.51.100.0/24"]));
    assert_eq!(guarded.len(), 1);
    assert_eq!(guarded[0].to, [ip("192.0.2.9")]);
    let texts = |from: &[ipnet::IpNet]| from.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&guarded[0].from), ["198.51.100.0/24"]);
    // The node is in it, and may use the address as its own.
    let guarded = sources(&full().source_ranges(&["192.0.2.0/29"]));
    assert_eq!(texts(&guarded[0].from), ["192.0.2.0/29", "192.0.2.9/32"]);
}

#[test]
fn usp_059_rules_of_iptables_lead_allowed_sources_only() {
    let guarded = service("web").load_balancer(&["192.0.2.9"]);
    let guarded = guarded.source_ranges(&["198.51.100.0/24", "203.0.113.7/32"]);
    let rules = saved(&cluster(&guarded), "web", &iptables());
    let rules: Vec<_> = rules
        .iter()
        .filter(|rule| rule.contains("-d 192.0.2.9/32"))
        .collect();
    assert_eq!(rules.len(), 4);
    for rule in rules {
        let from = ["-s 198.51.100.0/24 ", "-s 203.0.113.7/32 "];
        assert!(from.iter().any(|from| rule.contains(from)), "{rule}");
    }
}

#[test]
fn usp_065_a_protocol_that_cannot_be_relayed_refuses_and_others_work() {
    let both = full().over(&[Protocol::Tcp, Protocol::Sctp]);
    let mut cluster = Cluster::new();
    cluster.serving(&both, 8080, &[ep("10.1.0.1")]).step();
    let of = |protocol| {
        let exposures = cluster.desired.exposures(Family::V4).into_iter();
        let mut exposures = exposures.filter(|exposure| exposure.key.protocol == protocol);
        plan(exposures.next().unwrap())
    };
    let sctp = of(Protocol::Sctp);
    assert!(sctp.lanes().is_empty());
    assert!(
        sctp.portals
            .iter()
            .all(|portal| portal.target == Target::Reject)
    );
    assert_eq!(of(Protocol::Tcp).lanes().len(), 2);
}

#[test]
fn usp_015_services_without_cluster_ip_need_nothing() {
    let mut cluster = Cluster::new();
    let mut headless = full();
    headless.cluster_ips = ferrule_core::model::PerFamily::default();
    let slice = ferrule_core::testing::slice("web-1", "web", &[ep("10.1.0.1")]);
    cluster.service(&headless).slice(slice).step();
    assert!(cluster.desired.exposures(Family::V4).is_empty());
}

fn iptables() -> Options {
    Options {
        portals: PortalsBy::Iptables,
        ..Options::default()
    }
}

#[test]
fn usp_007_a_cluster_ip_has_one_rule_for_pods_and_one_for_the_node() {
    let plain = service("web");
    let address = plain.cluster_ips.v4.unwrap();
    let rules = saved(&cluster(&plain), "web", &iptables());
    let head =
        format!("-d {address}/32 -p tcp -m comment --comment \"demo/web:http\" -m tcp --dport 80");
    assert_eq!(
        rules,
        [
            format!("PORTALS-CONTAINER {head} -j REDIRECT --to-ports 40001"),
            format!("PORTALS-HOST {head} -j DNAT --to-destination 192.0.2.1:40001"),
        ]
    );
}

#[test]
fn usp_008_an_unnamed_port_is_called_by_its_service() {
    let mut plain = service("web");
    plain.ports = plain
        .ports
        .iter()
        .cloned()
        .map(|mut port| {
            port.name = "".into();
            port
        })
        .collect();
    let mut cluster = Cluster::new();
    cluster.serving(&plain, 8080, &[ep("10.1.0.1")]).step();
    let key = PortKey {
        name: "".into(),
        ..http("web")
    };
    let exposure = cluster.desired.exposure(Family::V4, &key).unwrap();
    let served = Served {
        plan: plan(exposure),
        ports: [(Class::Internal, 40001)].into(),
        ..Served::default()
    };
    let facts = cluster.desired.facts(Family::V4);
    let context = chains::Context::new(Family::V4, facts, &iptables());
    let rules = chains::rules(&key, &served, &context);
    let mut rules = rules.shared.values().flatten();
    assert!(rules.all(|rule| {
        let mut line = String::new();
        rule.saved(Family::V4, &mut line);
        line.contains("--comment \"demo/web\" ")
    }));
}

#[test]
fn usp_009_without_bind_address_pods_are_redirected_and_the_node_goes_to_its_own_address() {
    let rules = saved(&cluster(&full()), "web", &iptables());
    for rule in &rules {
        let host = rule.starts_with("PORTALS-HOST") || rule.starts_with("NODEPORT-HOST");
        let container = rule.contains("-CONTAINER ");
        assert_eq!(
            rule.contains(" -j DNAT --to-destination 192.0.2.1:4000"),
            host,
            "{rule}"
        );
        assert_eq!(
            rule.contains(" -j REDIRECT --to-ports 4000"),
            container,
            "{rule}"
        );
    }
}

#[test]
fn usp_010_with_a_bind_address_all_go_there() {
    let options = Options {
        bind: Some(ip("192.0.2.77")),
        ..iptables()
    };
    let rules = saved(&cluster(&full()), "web", &options);
    let nat = rules
        .iter()
        .filter(|rule| !rule.starts_with("NODEPORT-NON-LOCAL"));
    for rule in nat {
        assert!(
            rule.contains(" -j DNAT --to-destination 192.0.2.77:4000"),
            "{rule}"
        );
    }
}

#[test]
fn usp_011_an_external_ip_is_for_those_outside_and_where_it_is_local() {
    let plain = service("web").external_ips(&["192.0.2.8"]);
    let rules = saved(&cluster(&plain), "web", &iptables());
    let rules: Vec<_> = rules
        .iter()
        .filter(|rule| rule.contains("-d 192.0.2.8/32"))
        .collect();
    let comment = "-m comment --comment \"demo/web:http\" -m tcp --dport 80";
    let head = format!("-d 192.0.2.8/32 -p tcp {comment}");
    assert_eq!(
        rules,
        [
            &format!(
                "PORTALS-CONTAINER {head} -m physdev ! --physdev-is-in -j REDIRECT --to-ports 40002"
            ),
            &format!(
                "PORTALS-CONTAINER {head} -m addrtype --dst-type LOCAL -j REDIRECT --to-ports 40002"
            ),
            &format!(
                "PORTALS-HOST {head} -m addrtype --dst-type LOCAL -j DNAT --to-destination 192.0.2.1:40002"
            ),
        ]
    );
}

#[test]
fn usp_012_a_load_balancer_ip_is_treated_like_a_cluster_ip() {
    let plain = service("web").load_balancer(&["192.0.2.9"]);
    let rules = saved(&cluster(&plain), "web", &iptables());
    let of = |address: &str| {
        let rules = rules
            .iter()
            .filter(|rule| rule.contains(&format!("-d {address}/32")));
        rules
            .map(|rule| rule.replace(address, "IP").replace("40002", "40001"))
            .collect::<Vec<_>>()
    };
    let cluster_ip = plain.cluster_ips.v4.unwrap().to_string();
    assert_eq!(of("192.0.2.9"), of(&cluster_ip));
    assert_eq!(of("192.0.2.9").len(), 2);
}

#[test]
fn usp_013_a_node_port_has_rules_for_pods_and_node_and_is_accepted() {
    let plain = service("web").node_port(30080);
    let rules = saved(&cluster(&plain), "web", &iptables());
    let rules: Vec<_> = rules
        .iter()
        .filter(|rule| rule.starts_with("NODEPORT-"))
        .collect();
    let comment = "-p tcp -m comment --comment \"demo/web:http\" -m tcp --dport";
    let mut expected = [
        format!("NODEPORT-CONTAINER {comment} 30080 -j REDIRECT --to-ports 40002"),
        format!("NODEPORT-HOST {comment} 30080 -j DNAT --to-destination 192.0.2.1:40002"),
        format!("NODEPORT-NON-LOCAL {comment} 40002 -m conntrack --ctstate NEW -j ACCEPT"),
    ];
    expected.sort_by_key(|rule| !rule.contains("NON-LOCAL"));
    let mut rules: Vec<_> = rules.into_iter().cloned().collect();
    rules.sort_by_key(|rule| !rule.contains("NON-LOCAL"));
    assert_eq!(rules, expected);
}

#[test]
fn node_ports_answer_on_listed_addresses_only() {
    let mut cluster = cluster(&service("web").node_port(30080));
    cluster.settings(Settings {
        node_port_addresses: NodePortAddresses::parse(&["192.0.2.0/25", "10.9.0.0/16"]).unwrap(),
        ..Settings::default()
    });
    cluster.step();
    let rules = saved(&cluster, "web", &iptables());
    let container = rules
        .iter()
        .filter(|rule| rule.starts_with("NODEPORT-CONTAINER"));
    let nets: Vec<_> = container
        .map(|rule| rule.split(' ').nth(2).unwrap())
        .collect();
    assert_eq!(nets.len(), 2);
    assert!(
        nets.contains(&"192.0.2.0/25") && nets.contains(&"10.9.0.0/16"),
        "{nets:?}"
    );
}

#[test]
fn without_a_proxy_port_addresses_refuse() {
    let cluster = cluster(&full());
    let served = Served {
        ports: BTreeMap::new(),
        ..served(&cluster, "web")
    };
    let reject = Data::Verdict(Verdict::Goto("reject-chain".into()));
    for (container, element) in render::drawing(&http("web"), &served) {
        match container {
            Container::Refused | Container::RefusedNodePorts => {
                assert_eq!(element.data, reject);
            }
            other => assert_eq!(other, Container::ClusterIps),
        }
    }
}

#[test]
fn what_goes_leaves_no_element_though_its_lanes_are_open_still() {
    let cluster = cluster(&full());
    let gone = Served {
        plan: super::plan::Plan::default(),
        ..served(&cluster, "web")
    };
    assert!(!gone.ports.is_empty());
    assert_eq!(render::drawing(&http("web"), &gone), []);
}

#[test]
fn usp_055_endpoints_that_shut_down_are_named_to_the_relay() {
    let mut cluster = Cluster::with(Settings {
        connections: Connections::Relayed,
        ..Settings::default()
    });
    let pods = [
        ep("10.1.0.1"),
        ep("10.1.0.2").drain(),
        ep("10.1.0.3").dead(),
    ];
    cluster.serving(&service("web"), 8080, &pods).step();
    let backends = plan(&cluster.exposure("web")).backends;
    assert_eq!(backends.cluster, ["10.1.0.1:8080".parse().unwrap()]);
    assert_eq!(backends.draining, ["10.1.0.2:8080".parse().unwrap()]);
}

/// A family's Services as text that `nft` reads, and reads again when it has listed it.
fn loads(family: Family, options: &Options) {
    let mut cluster = Cluster::new();
    let a = |x| ferrule_testbed::address(family, x, 1);
    let all = service("all")
        .at(a(96))
        .external_ips(&[a(8)])
        .load_balancer(&[a(9)]);
    let all = all
        .node_port(30001)
        .over(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let mut slice = ferrule_core::testing::slice("all-1", "all", &[ep(a(20))]);
    slice.family = family;
    cluster
        .service(&all)
        .service(service("none").at(ferrule_testbed::address(family, 96, 2)))
        .slice(slice.over(&[Protocol::Tcp, Protocol::Udp]))
        .settings(Settings {
            node_port_addresses: NodePortAddresses::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap(),
            ..Settings::default()
        })
        .step();
    let text = text(&cluster.desired, family, options).unwrap();
    assert!(text.contains("service-portals"), "{text}");
    let output = try_feed("nft", &["-f", "-"], &text);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{text}");
    let listed = run("nft", &["list", "table", word(family), TABLES[0]]);
    run("nft", &["delete", "table", word(family), TABLES[0]]);
    let output = try_feed("nft", &["-f", "-"], &listed);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{listed}");
}

#[test]
fn what_is_rendered_is_read_by_nft_and_so_is_its_listing() {
    for family in Family::ALL {
        in_namespace(|| loads(family, &Options::default()));
        let bind = ferrule_testbed::address(family, 3, 4);
        let options = Options {
            bind: Some(bind),
            ..Options::default()
        };
        in_namespace(|| loads(family, &options));
    }
}

/// Elements of the table in use, by map.
fn elements(family: Family, table: &str) -> BTreeMap<String, BTreeSet<String>> {
    let snapshot = Nft::open().unwrap().snapshot(kernel(family), table);
    let snapshot = snapshot.unwrap().unwrap();
    let all = snapshot.elements.into_iter();
    all.map(|(set, elements)| {
        let elements = elements
            .iter()
            .map(|one| format!("{:?} {:?}", one.key, one.data));
        (set.to_string(), elements.collect())
    })
    .collect()
}

#[test]
fn the_table_goes_with_its_socket_and_nobody_else_can_change_it() {
    in_namespace(|| {
        let family = Family::V4;
        let cluster = cluster(&full());
        let statics =
            || render::statics(cluster.desired.facts(family), family, &Options::default());
        let after = render::drawing(&http("web"), &served(&cluster, "web"));
        let redrawn = [Redrawn {
            before: Drawing::new(),
            after,
        }];
        let mut table = PortalTable::open(family).unwrap();
        assert!(table.update(statics(), &redrawn).unwrap() > 0);
        assert_eq!(table.update(statics(), &[]).unwrap(), 0);

        let delete = ["delete", "table", "ip", TABLES[0]];
        assert!(!try_feed("nft", &delete, "").status.success());
        run("nft", &["flush", "ruleset"]);
        assert_eq!(elements(family, TABLES[0])["proxy-ports"].len(), 2);

        // Another process: a successor, or one that cleans up.
        let mut other = PortalTable::open(family).unwrap();
        assert_eq!(other.remove().unwrap(), 0, "it is no left-over");
        assert!(other.update(statics(), &redrawn).unwrap() > 0);
        assert_eq!(elements(family, TABLES[0]), elements(family, TABLES[1]));
        drop(table);
        let tables = Nft::open().unwrap().tables(kernel(family)).unwrap();
        let names: Vec<_> = tables.iter().map(|held| &*held.object.name).collect();
        assert_eq!(names, [TABLES[1]]);
        assert!(tables[0].object.flags & Table::OWNER != 0);
        assert!(other.remove().unwrap() > 0);
    });
}

#[test]
fn portals_that_the_kernel_refuses_change_nothing_and_are_made_up_for() {
    in_namespace(|| {
        let family = Family::V4;
        let drawn = |service: &Service, name: &str| {
            let cluster = cluster(service);
            render::drawing(&http(name), &served(&cluster, name))
        };
        let cluster = cluster(&full());
        let statics =
            || render::statics(cluster.desired.facts(family), family, &Options::default());
        let redrawn = [Redrawn {
            before: Drawing::new(),
            after: drawn(&full(), "web"),
        }];
        let mut table = PortalTable::open(family).unwrap();
        table.update(statics(), &redrawn).unwrap();
        let before = elements(family, TABLES[0]);
        // Nothing of this is there to be deleted.
        let unknown = service("gone").at(ip("10.96.0.77"));
        let refused = [Redrawn {
            before: drawn(&unknown, "gone"),
            after: Drawing::new(),
        }];
        table.update(statics(), &refused).unwrap_err();
        assert_eq!(elements(family, TABLES[0]), before);
        assert!(table.needs_all());
        table.update(statics(), &redrawn).unwrap();
        assert_eq!(elements(family, TABLES[1]), before);

        // One process more than there are names waits for one of the others to end.
        let mut second = PortalTable::open(family).unwrap();
        second.update(statics(), &redrawn).unwrap();
        let mut third = PortalTable::open(family).unwrap();
        let error = third.update(statics(), &redrawn).unwrap_err();
        let said = crate::error_chain(&error);
        assert!(said.contains("two other processes have one"), "{said}");
        drop(second);
        third.update(statics(), &redrawn).unwrap();
    });
}

/// Up to four Services, each absent or in some shape.
fn shapes() -> impl Strategy<Value = Vec<Option<(u8, bool, bool)>>> {
    let shape = (0..3_u8, any::<bool>(), any::<bool>());
    prop::collection::vec(prop::option::of(shape), 4)
}

fn drawings(shapes: &[Option<(u8, bool, bool)>]) -> BTreeMap<PortKey, Drawing> {
    let mut cluster = Cluster::new();
    for (number, shape) in (1..).zip(shapes) {
        let Some((address, serving, local)) = *shape else {
            continue;
        };
        let name = format!("s{number}");
        // Several may want the same addresses.
        let mut wanted = service(&name)
            .at(IpAddr::from([10, 96, 0, number]))
            .load_balancer(&[IpAddr::from([192, 0, 2, address])])
            .port("second", 81)
            .node_port(30000 + i64::from(address));
        if local {
            wanted = wanted.external_local();
        }
        let pods = [ep("10.1.0.2")];
        let pods = if serving { &pods[..] } else { &[] };
        cluster.serving(&wanted, 8080, pods);
    }
    cluster.step();
    let all = cluster.desired.exposures(Family::V4).into_iter();
    all.map(|exposure| {
        let plan = plan(exposure);
        // Each Service port has two of its own.
        let service = u16::from(exposure.key.service.name().as_bytes()[1]);
        let second = u16::from(&*exposure.key.name == "second");
        let first = 40000 + 4 * service + 2 * second;
        let ports = plan.lanes().into_iter().zip(first..);
        let served = Served {
            ports: ports.collect(),
            plan,
            ..Served::default()
        };
        (
            exposure.key.clone(),
            render::drawing(&exposure.key, &served),
        )
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_from_one_table_to_any_other(steps in prop::collection::vec(shapes(), 1..5)) {
        let mut failure = None;
        in_namespace(|| {
            let cluster = Cluster::new();
            let facts = cluster.desired.facts(Family::V4);
            let statics = || render::statics(facts, Family::V4, &Options::default());
            let mut table = PortalTable::open(Family::V4).unwrap();
            let mut before = BTreeMap::new();
            for shapes in &steps {
                let after = drawings(shapes);
                let keys: BTreeSet<PortKey> = before.keys().chain(after.keys()).cloned().collect();
                let of = |map: &BTreeMap<PortKey, Drawing>, key| map.get(key).cloned().unwrap_or_default();
                let changes: Vec<_> = keys.iter().map(|key| Redrawn {
                    before: of(&before, key),
                    after: of(&after, key),
                }).collect();
                table.update(statics(), &changes).unwrap();
                let mut fresh = PortalTable::open(Family::V4).unwrap();
                let all: Vec<_> = after.values().map(|after| Redrawn {
                    before: Drawing::new(),
                    after: after.clone(),
                }).collect();
                fresh.update(statics(), &all).unwrap();
                let (one, other) = (elements(Family::V4, TABLES[0]), elements(Family::V4, TABLES[1]));
                if one != other {
                    failure = Some(format!("{one:?}\n{other:?}"));
                    return;
                }
                before = after;
            }
        });
        prop_assert_eq!(failure, None);
    }
}

#[test]
fn ports_of_the_node_are_claimed_for_node_ports_and_local_addresses() {
    let cluster = cluster(&full());
    let served = served(&cluster, "web");
    let claims = |local: &[IpAddr]| {
        let claims = super::claims::wanted(&http("web"), &served.plan, local);
        claims
            .into_iter()
            .map(|claim| (claim.ip, claim.port))
            .collect::<Vec<_>>()
    };
    assert_eq!(claims(&[]), [(None, port(30080))]);
    let external = ip("192.0.2.8");
    assert_eq!(
        claims(&[external]),
        [(None, port(30080)), (Some(external), port(80))]
    );
}
