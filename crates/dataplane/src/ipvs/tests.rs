//! What is rendered, and the steps there, without a kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::desired::FrontendKind;
use ferrule_core::facts::{Connections, Settings};
use ferrule_core::model::{Family, Protocol, Service as Object, Slice};
use ferrule_kernel::ipset::{Entry, IpPort};
use ferrule_kernel::ipvs::ServerKey;
use ferrule_testbed::cluster::{Cluster, Objects, ep, http, ip, service, slice};

use super::diff::{self, Difference, Installed, Intake, Present, Rules, Step};
use super::names::Set;
use super::render::{self, Item, Rendered, Service};
use super::statics::{self, Barred, Contents};
use super::wanted::{Touched, Wanted};

mod laws;

mod order;
mod recorded;
mod rendering;
mod rules;

const FAMILY: Family = Family::V4;

/// Addresses of this machine, one of them on the interface of pods.
fn local() -> Vec<IpAddr> {
    ["10.1.0.254", "127.0.0.1", "192.0.2.1"].map(ip).into()
}

fn cluster() -> Cluster {
    Cluster::with(settings())
}

fn settings() -> Settings {
    Settings {
        connections: Connections::Drained,
        ..Settings::default()
    }
}

fn context(cluster: &Cluster) -> render::Context {
    let facts = cluster.desired.facts(FAMILY);
    render::Context::new(FAMILY, "rr".into(), BTreeSet::new(), facts, &local())
}

fn rendered(cluster: &Cluster, name: &str) -> Rendered {
    render::exposure(&cluster.exposure(name), &context(cluster))
}

/// Everything that a cluster comes to.
fn wanted(cluster: &Cluster) -> Wanted {
    let context = context(cluster);
    let all = cluster.desired.exposures(FAMILY).into_iter();
    Wanted::of(all.map(|exposure| (&exposure.key, render::exposure(exposure, &context))))
}

fn key(address: &str, port: u16) -> ServerKey {
    ServerKey {
        protocol: 6,
        address: ip(address),
        port,
    }
}

fn pod(last: u8) -> SocketAddr {
    ([10, 1, 0, last], 8080).into()
}

fn ip_port(address: &str, port: u16) -> Entry {
    Entry::IpPort(IpPort {
        address: ip(address),
        protocol: 6,
        port,
    })
}

/// The machine after a step.
fn take(installed: &mut Installed, step: &Step) {
    let server = |installed: &mut Installed, key: &ServerKey| -> Present {
        installed.servers.remove(key).expect("there is one")
    };
    match step {
        Step::Enter(set, entry) => assert!(installed.entries.insert((*set, *entry)), "{step:?}"),
        Step::Leave(set, entry) => assert!(installed.entries.remove(&(*set, *entry)), "{step:?}"),
        Step::Bind(ip) => assert!(installed.addresses.insert(*ip), "{step:?}"),
        Step::Unbind(ip) => assert!(installed.addresses.remove(ip), "{step:?}"),
        Step::Rules(_) => {}
        Step::AddServer(key, service) => {
            let mut present = Present::of(service, []);
            present.destinations.clear();
            assert!(installed.servers.insert(*key, present).is_none());
        }
        Step::SetServer(key, service) => {
            let old = server(installed, key);
            let mut new = Present::of(service, []);
            new.destinations = old.destinations;
            installed.servers.insert(*key, new);
        }
        Step::DeleteServer(key) => drop(server(installed, key)),
        Step::AddDestination(key, to)
        | Step::Open(key, to)
        | Step::Close(key, to)
        | Step::DeleteDestination(key, to) => {
            let mut present = server(installed, key);
            let (was, is) = match step {
                Step::AddDestination(..) => (false, Some(Intake::Open)),
                Step::Open(..) => (true, Some(Intake::Open)),
                Step::Close(..) => (true, Some(Intake::Closed)),
                _ => (true, None),
            };
            let old = match is {
                Some(intake) => present.destinations.insert(*to, intake),
                None => present.destinations.remove(to),
            };
            assert_eq!(old.is_some(), was, "{step:?}");
            installed.servers.insert(*key, present);
        }
    }
}

fn after(mut installed: Installed, steps: &[Step]) -> Installed {
    for step in steps {
        take(&mut installed, step);
    }
    installed
}

/// What is there when everything wanted was written onto an empty machine.
fn written(wanted: &Wanted) -> Installed {
    let difference = diff::diff(&Installed::default(), &wanted.target(), Rules::default());
    after(Installed::default(), &difference.steps)
}

/// The steps that the next change of a cluster takes.
fn change(
    cluster: &mut Cluster,
    wanted: &mut Wanted,
    closed: &[(ServerKey, SocketAddr)],
) -> Difference {
    let before = context(cluster);
    let delta = cluster.step();
    let context = context(cluster);
    assert_eq!(before, context);
    let mut touched = Touched::default();
    let changes = &delta.families[FAMILY].changes;
    for (key, change) in changes {
        if let Some(before) = &change.before {
            wanted.remove(key, &render::exposure(before, &context), &mut touched);
        }
    }
    for (key, change) in changes {
        if let Some(after) = &change.after {
            wanted.add(key, render::exposure(after, &context), &mut touched);
        }
    }
    let rules = match touched.rules(wanted) {
        Some((before, after)) => Rules::between(&before, after),
        None => Rules::default(),
    };
    let before = touched.before(|key| {
        let of_server = closed.iter().filter(|(of, _)| of == key);
        of_server.map(|(_, address)| *address).collect()
    });
    diff::diff(&before, &touched.after(wanted), rules)
}

/// A Service with a load balancer.
fn balanced(name: &str, vip: &str) -> Object {
    service(name).load_balancer(&[vip])
}

fn endpoints(name: &str, pods: &[u8]) -> Slice {
    let pods: Vec<_> = pods
        .iter()
        .map(|last| ep(&format!("10.1.0.{last}")).local())
        .collect();
    slice(&format!("{name}-1"), name, &pods)
}
