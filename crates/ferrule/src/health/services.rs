//! One small server per Service that reports to load balancers how many of its endpoints are here.
//!
//! In: after every successful sync, which health checks changed; and on which addresses this
//! node serves NodePorts. Out: open ports, and a [`Refusal`] for every Service whose port could
//! not be had. Those are tried again at the next call.
//!
//! One instance per family. Called by the sync thread; the answers come from the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrule_core::desired::HealthCheck;
use ferrule_core::facts::NodePorts;
use ferrule_core::model::{Family, Port, ServiceKey};
use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use tokio::runtime::Handle;

use super::proxy::ProxyHealth;
use crate::clock::Clock;
use crate::http::{Handler, JSON, ListenError, Network, Response, Server, handler};

#[cfg(test)]
mod tests;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The reason of the event on a Service whose port could not be had; its type is Warning.
pub const EVENT_REASON: &str = "FailedToStartServiceHealthcheck";
/// The action of that event.
pub const EVENT_ACTION: &str = "Listen";

/// The health ports of one family.
#[derive(Debug)]
pub struct ServiceHealth {
    runtime: Handle,
    family: Family,
    node_name: Arc<str>,
    answers: Answers,
    addresses: BTreeSet<IpAddr>,
    wanted: BTreeMap<ServiceKey, HealthCheck>,
    instances: BTreeMap<ServiceKey, Instance>,
    /// To be looked at with the next change: an address could not be had, or is new.
    pending: BTreeSet<ServiceKey>,
}

/// A port that could not be had: an event on the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The Service.
    pub service: ServiceKey,
    /// The note of the event: node, Service, port and cause.
    pub note: String,
}

/// Where answers come from.
#[derive(Clone)]
struct Answers {
    /// `None` when the health server is switched off: then the proxy counts as healthy.
    proxy: Option<Arc<ProxyHealth>>,
    clock: Clock,
}

/// The open ports of one Service.
#[derive(Debug)]
struct Instance {
    port: Port,
    local_ready: Arc<AtomicUsize>,
    servers: BTreeMap<IpAddr, Server>,
}

impl ServiceHealth {
    /// Nothing is open yet; every address of the family is meant until [`ServiceHealth::listen_on`].
    pub fn new(
        runtime: Handle,
        family: Family,
        node_name: Arc<str>,
        proxy: Option<Arc<ProxyHealth>>,
        clock: Clock,
    ) -> Self {
        Self {
            runtime,
            family,
            node_name,
            answers: Answers { proxy, clock },
            addresses: everywhere(family),
            wanted: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeSet::new(),
        }
    }

    /// The family it serves.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Takes what became different, tries again what failed before, and returns what fails now.
    pub fn apply(&mut self, changes: BTreeMap<ServiceKey, Option<HealthCheck>>) -> Vec<Refusal> {
        let mut concerned = std::mem::take(&mut self.pending);
        for (service, check) in changes {
            concerned.insert(service.clone());
            match check {
                Some(check) => self.wanted.insert(service, check),
                None => self.wanted.remove(&service),
            };
        }
        self.reconcile(&concerned)
    }

    /// Takes what this node's addresses are now; the next [`ServiceHealth::apply`] makes it so.
    /// Ports on addresses that stay are not touched.
    pub fn listen_on(&mut self, node_ports: &NodePorts, local: &[IpAddr]) {
        let addresses = match node_ports {
            NodePorts::All => everywhere(self.family),
            NodePorts::Within(_) | NodePorts::Nowhere => node_ports
                .among(local, self.family)
                .into_iter()
                .filter(|ip| !is_link_local(*ip))
                .collect(),
        };
        if addresses != self.addresses {
            self.addresses = addresses;
            self.pending.extend(self.wanted.keys().cloned());
        }
    }

    /// Whether no Service wants a port, so that addresses do not matter.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Makes what is open equal to what is wanted, for these Services.
    fn reconcile(&mut self, concerned: &BTreeSet<ServiceKey>) -> Vec<Refusal> {
        // Close first: a port may pass from one Service to another, and a wildcard excludes
        // every single address.
        for service in concerned {
            self.close(service);
        }
        let mut refusals = Vec::new();
        for service in concerned {
            let Some(check) = self.wanted.get(service).copied() else {
                continue;
            };
            if let Err(error) = self.open(service, check) {
                let port = check.port;
                tracing::error!(err = %error, %service, %port, "Failed to start healthcheck");
                refusals.push(Refusal {
                    service: service.clone(),
                    note: format!(
                        "node {} failed to start healthcheck \"{service}\" on port {port}: {error}",
                        self.node_name
                    ),
                });
                self.pending.insert(service.clone());
            }
        }
        refusals
    }

    /// Closes what this Service has no use for any more.
    fn close(&mut self, service: &ServiceKey) {
        let port = self.wanted.get(service).map(|check| check.port);
        let Some(instance) = self.instances.get_mut(service) else {
            return;
        };
        if port == Some(instance.port) {
            instance.servers.retain(|ip, _| self.addresses.contains(ip));
        } else {
            tracing::info!(%service, port = %instance.port, "Closing healthcheck");
            self.instances.remove(service);
        }
    }

    /// Opens what this Service lacks: all of it or, if an address cannot be had, none.
    fn open(&mut self, service: &ServiceKey, check: HealthCheck) -> Result<(), ListenError> {
        let instance = self.instances.get(service);
        let local_ready = instance.map_or_else(Arc::default, |found| found.local_ready.clone());
        local_ready.store(check.local_ready, Ordering::Relaxed);
        if instance.is_none() {
            tracing::info!(%service, port = %check.port, "Opening healthcheck");
        }
        let network = match self.family {
            Family::V4 => Network::Tcp4,
            Family::V6 => Network::Tcp6,
        };
        // On an error, what this call opened is closed by being dropped; what served before
        // goes on serving.
        let servers: BTreeMap<_, _> = self
            .addresses
            .iter()
            .filter(|ip| instance.is_none_or(|found| !found.servers.contains_key(*ip)))
            .map(|ip| {
                let address = SocketAddr::new(*ip, check.port.get());
                let handler = self.answers.handler(service, &local_ready);
                Ok((*ip, Server::open(&self.runtime, network, address, handler)?))
            })
            .collect::<Result<_, ListenError>>()?;
        self.instances
            .entry(service.clone())
            .or_insert_with(|| Instance {
                port: check.port,
                local_ready,
                servers: BTreeMap::new(),
            })
            .servers
            .extend(servers);
        Ok(())
    }
}

impl Answers {
    /// Answers for one Service, whatever is asked.
    fn handler(&self, service: &ServiceKey, local_ready: &Arc<AtomicUsize>) -> Handler {
        let (answers, service) = (self.clone(), service.clone());
        let local_ready = local_ready.clone();
        handler(move |_| answers.answer(&service, local_ready.load(Ordering::Relaxed)))
    }

    fn answer(&self, service: &ServiceKey, local_ready: usize) -> Response {
        let healthy = self
            .proxy
            .as_ref()
            .is_none_or(|proxy| proxy.is_healthy((self.clock)()));
        let status = if healthy && local_ready != 0 {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Response::new(status, JSON, body(service, local_ready, healthy))
            .nosniff()
            .with(WEIGHT, HeaderValue::from(local_ready))
    }
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

/// kube-proxy's bytes, tabs and the missing last newline included.
fn body(service: &ServiceKey, local_ready: usize, healthy: bool) -> String {
    let [namespace, name] = [service.namespace(), service.name()].map(serde_json::Value::from);
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {local_ready},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}

fn everywhere(family: Family) -> BTreeSet<IpAddr> {
    let ip = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    BTreeSet::from([ip])
}

/// Such an address exists once per interface and cannot be bound by itself.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
