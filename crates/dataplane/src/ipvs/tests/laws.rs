//! What holds for all clusters and all machines.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Something that happens to one of a few Services.
#[derive(Clone, Debug)]
struct Happening {
    service: u8,
    exposed: u8,
    local: bool,
    sticky: bool,
    /// What becomes of each of four endpoints.
    endpoints: [u8; 4],
    gone: bool,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = (
        0..4_u8,
        0..16_u8,
        any::<bool>(),
        any::<bool>(),
        [0..6_u8, 0..6, 0..6, 0..6],
        prop::bool::weighted(0.2),
    );
    let one = one.prop_map(
        |(service, exposed, local, sticky, endpoints, gone)| Happening {
            service,
            exposed,
            local,
            sticky,
            endpoints,
            gone,
        },
    );
    prop::collection::vec(one, 1..8)
}

fn happen(cluster: &mut Cluster, happening: &Happening) {
    let number = happening.service;
    let name = format!("s{number}");
    let slice_name = format!("{name}-1");
    if happening.gone {
        cluster.no_service(&name).no_slice(&slice_name);
        return;
    }
    let mut object = service(&name).at(&format!("10.96.0.{}", number + 1));
    if happening.exposed & 1 != 0 {
        object = object.node_port(30000 + i64::from(number));
    }
    if happening.exposed & 2 != 0 {
        // Two may want the same, and one has the port of another's NodePort.
        object = object.port("http", 30000);
        object = object.external_ips(&[IpAddr::from([198, 18, 0, number / 2]), ip("192.0.2.1")]);
    }
    if happening.exposed & 4 != 0 {
        object = object.load_balancer(&[IpAddr::from([198, 51, 100, number / 2])]);
    }
    if happening.local {
        object = object.external_local();
    }
    if happening.local && happening.sticky {
        object = object.internal_local();
    }
    if happening.exposed & 8 != 0 {
        object = object.source_ranges(&["203.0.113.0/24"]);
    }
    if happening.sticky {
        object = object.affinity(60);
    }
    let pods = (1..).zip(happening.endpoints).filter_map(|(last, how)| {
        let pod = ep(&format!("10.1.0.{last}"));
        Some(match how {
            0 => return None,
            1 => pod.local().drain(),
            2 => pod.unready(),
            3 => pod.local(),
            _ => pod,
        })
    });
    let pods: Vec<_> = pods.collect();
    cluster
        .service(object)
        .slice(slice(&slice_name, &name, &pods));
}

fn happen_all(cluster: &mut Cluster, all: &[Happening]) {
    for happening in all {
        happen(cluster, happening);
    }
}

/// Any machine, most of it from one of these clusters, some of it changed by others.
fn machines() -> impl Strategy<Value = (Vec<Happening>, Vec<u8>)> {
    (happenings(), prop::collection::vec(any::<u8>(), 0..6))
}

fn disturb(installed: &mut Installed, disturbances: &[u8]) {
    for byte in disturbances {
        let at = usize::from(byte >> 3);
        let servers: Vec<ServerKey> = installed.servers.keys().copied().collect();
        let chosen = servers.get(at % servers.len().max(1)).copied();
        match (byte & 7, chosen) {
            (0, Some(key)) => drop(installed.servers.remove(&key)),
            (1, Some(key)) => {
                let server = installed.servers.get_mut(&key).expect("it is chosen");
                server.destinations.insert(pod(byte >> 3), Intake::Open);
            }
            (2, Some(key)) => {
                let server = installed.servers.get_mut(&key).expect("it is chosen");
                for intake in server.destinations.values_mut() {
                    *intake = Intake::Closed;
                }
            }
            (3, Some(key)) => {
                let server = installed.servers.get_mut(&key).expect("it is chosen");
                server.scheduler = "wlc".into();
                for intake in server.destinations.values_mut() {
                    *intake = Intake::Other;
                }
            }
            (4, _) => installed.entries.clear(),
            (5, _) => {
                let entry = (Set::ClusterIp, ip_port("10.96.9.9", 1));
                installed.entries.insert(entry);
            }
            (6, _) => installed.addresses.clear(),
            (_, _) => drop(installed.addresses.insert([10, 96, 9, byte >> 3].into())),
        }
    }
}

/// What must be there in the end, given what was there.
fn expected(installed: &Installed, wanted: &Wanted) -> Installed {
    let target = wanted.target();
    let server = |key: &ServerKey, service: &Service| {
        let there = installed.servers.get(key);
        let old = there
            .into_iter()
            .flat_map(|there| there.destinations.keys());
        let stays = old.filter(|address| service.leaving.contains(address));
        Present::of(service, stays.copied())
    };
    let servers = target.servers.iter();
    Installed {
        servers: servers
            .map(|(key, service)| (*key, server(key, service)))
            .collect(),
        entries: target.entries.clone(),
        addresses: target.addresses.clone(),
    }
}

/// Whether a guarded address is open at some moment.
fn holds_at_every_moment(mut installed: Installed, steps: &[Step], wanted: &Wanted) {
    let mut rules: Option<Contents> = None;
    let target = wanted.target();
    let before = installed.clone();
    for step in steps {
        if let Step::Rules(contents) = step {
            rules = Some(contents.clone());
        }
        take(&mut installed, step);
        for (key, present) in &installed.servers {
            let entry = Entry::IpPort(IpPort {
                address: key.address,
                protocol: key.protocol,
                port: key.port,
            });
            let new = !before.servers.contains_key(key);
            let (guard, now) = ((Set::Firewalled, entry), &installed.entries);
            if new && target.entries.contains(&guard) && !present.destinations.is_empty() {
                assert!(
                    now.contains(&guard),
                    "{key} answers before its firewall is there"
                );
                let rules = rules.as_ref().expect("there are rules by then");
                assert!(rules.occupied.contains(&Set::Firewalled));
            }
        }
    }
}

proptest! {
    #[test]
    fn a_diff_leads_from_installed_to_wanted(
        (old, disturbances) in machines(),
        new in happenings(),
    ) {
        let mut cluster = cluster();
        happen_all(&mut cluster, &old);
        cluster.step();
        let mut installed = written(&wanted(&cluster));
        disturb(&mut installed, &disturbances);
        happen_all(&mut cluster, &new);
        cluster.step();
        let wanted = wanted(&cluster);
        let before = Contents { occupied: installed.occupied(), barred: BTreeSet::new() };
        let rules = Rules::between(&before, wanted.contents());
        let difference = diff::diff(&installed, &wanted.target(), rules);
        let end = after(installed.clone(), &difference.steps);
        let last = difference.steps.iter().rev().find_map(|step| match step {
            Step::Rules(contents) => Some(contents),
            _ => None,
        });
        prop_assert_eq!(last, Some(&wanted.contents()));
        prop_assert_eq!(&end, &expected(&installed, &wanted));
        holds_at_every_moment(installed, &difference.steps, &wanted);
        // Once more: nothing is left to do.
        let again = diff::diff(&end, &wanted.target(), Rules::default());
        prop_assert_eq!(again.steps, vec![]);
        let closed: BTreeSet<_> = again.closed.into_iter().collect();
        prop_assert_eq!(closed, difference.closed.into_iter().collect());
    }

    #[test]
    fn many_changes_end_where_one_does(all in happenings()) {
        let mut cluster = cluster();
        let mut incremental = wanted(&cluster);
        let mut installed = written(&incremental);
        let mut closed: BTreeMap<ServerKey, BTreeSet<SocketAddr>> = BTreeMap::new();
        for happening in &all {
            happen(&mut cluster, happening);
            let draining: Vec<_> = closed
                .iter()
                .flat_map(|(key, all)| all.iter().map(|address| (*key, *address)))
                .collect();
            let before = incremental.contents();
            let difference = change(&mut cluster, &mut incremental, &draining);
            let from_scratch = wanted(&cluster);
            prop_assert_eq!(&incremental, &from_scratch);
            // What a comparison of everything would have led to.
            let end = expected(&installed, &from_scratch);
            holds_at_every_moment(installed.clone(), &difference.steps, &from_scratch);
            installed = after(installed, &difference.steps);
            prop_assert_eq!(&installed, &end);
            let mut rules = difference.steps.iter().filter_map(|step| match step {
                Step::Rules(contents) => Some(contents),
                _ => None,
            });
            let rules = rules.next_back().unwrap_or(&before);
            prop_assert_eq!(rules, &from_scratch.contents());
            closed.clear();
            for (key, server) in &installed.servers {
                let of_server = server.destinations.iter();
                let of_server = of_server.filter(|(_, intake)| **intake == Intake::Closed);
                let addresses: BTreeSet<_> = of_server.map(|(address, _)| *address).collect();
                closed.insert(*key, addresses);
            }
        }
    }

    #[test]
    fn two_states_differ_in_what_is_touched(old in happenings(), new in happenings()) {
        let mut one = cluster();
        happen_all(&mut one, &old);
        one.step();
        let mut other = cluster();
        happen_all(&mut other, &new);
        other.step();
        let (old, new) = (wanted(&one), wanted(&other));
        let touched = Touched::between(&old, &new);
        let before = touched.before(|_| Vec::new());
        let difference = diff::diff(&before, &touched.after(&new), Rules::default());
        let installed = written(&old);
        let end = after(installed.clone(), &difference.steps);
        prop_assert_eq!(end, expected(&installed, &new));
    }
}
