//! Waits until every proxy has programmed everything written so far, without waiting for a time.
//!
//! The lab has a Service of its own. It is moved to a new port, and its endpoint to another port:
//! when the new port answers from the new endpoint, on every node of every world and in both
//! families, then whatever was written to Services and EndpointSlices before has been programmed,
//! because both watches keep the order of writing. Then its port is moved once more. A proxy does
//! one sync after the other, so the second move shows that everything that follows the first sync
//! is done too: forgotten flows, health checks, metrics.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::api::Api;
use crate::os;
use crate::plan::{self, Family, Host};
use crate::probe::{self, Answer, Protocol};
use crate::world::World;

/// Where the sentinel's server listens; its endpoint moves between the two.
pub const PORTS: [u16; 2] = [7001, 7002];
/// Cluster IPs of the sentinel.
pub const ADDRESSES: [&str; 2] = ["10.96.255.1", "fd00:10:96::ff01"];
const FIRST_PORT: u16 = 20000;
/// Far more than a failed sync needs to be tried again, also in mode ipvs of kube-proxy in User Mode
/// Linux.
const TIMEOUT: Duration = Duration::from_mins(2);
/// A proxy that has not got there yet refuses or says nothing. A busy machine may need longer to
/// answer than this at first: every silent try doubles the wait, up to the longest.
const TRY: Duration = Duration::from_millis(60);
const LONGEST_TRY: Duration = Duration::from_secs(2);
/// A node that is about to go is not eligible for traffic; its health answer says so.
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The sentinel's position.
#[derive(Default)]
pub struct Barrier {
    port: u16,
    endpoint: usize,
}

impl Barrier {
    /// Returns when every proxy is up to date.
    pub fn pass(&mut self, api: &Api, worlds: &mut [World]) -> Result<()> {
        self.move_once(api, worlds)?;
        self.move_port(api, worlds)
    }

    /// Returns when everything written before is in the rules of every proxy.
    pub fn move_once(&mut self, api: &Api, worlds: &mut [World]) -> Result<()> {
        self.endpoint = (self.endpoint + 1) % PORTS.len();
        for family in Family::BOTH {
            api.apply(&slice(family, PORTS[self.endpoint]))?;
        }
        self.move_port(api, worlds)
    }

    fn move_port(&mut self, api: &Api, worlds: &mut [World]) -> Result<()> {
        self.port = (self.port + 1) % 10000;
        api.apply(&service(FIRST_PORT + self.port))?;
        self.wait(worlds)
    }

    /// As [`Barrier::pass`], after Node objects were changed too.
    ///
    /// Node changes cannot be seen in packets, but health answers show whether a taint arrived,
    /// and what was written before it arrived before it.
    pub fn pass_nodes(&mut self, api: &Api, worlds: &mut [World]) -> Result<()> {
        for (taints, eligible) in [
            (json!([{ "key": TAINT, "effect": "NoSchedule" }]), false),
            (json!([]), true),
        ] {
            for node in plan::nodes() {
                let path = format!("/api/v1/nodes/{}", node.name);
                api.merge(&path, &json!({ "spec": { "taints": taints } }))?;
            }
            each(worlds, |world, node, _| {
                let to = SocketAddr::new(node.address(Family::V4), 10256);
                let health = world.place(node.name)?.run(|| {
                    let code = || probe::get(to, "/healthz", TRY).ok();
                    os::poll(TIMEOUT, || {
                        code().filter(|(code, _)| (*code == 200) == eligible)
                    })
                })?;
                health.map_or_else(|| bail!("did not notice a change of its Node"), |_| Ok(()))
            })?;
        }
        self.pass(api, worlds)
    }

    fn wait(&self, worlds: &mut [World]) -> Result<()> {
        let port = FIRST_PORT + self.port;
        let endpoint = PORTS[self.endpoint];
        let arrived = each(worlds, |world, node, family| {
            let to: SocketAddr = match family {
                Family::V4 => format!("{}:{port}", ADDRESSES[0]),
                Family::V6 => format!("[{}]:{port}", ADDRESSES[1]),
            }
            .parse()?;
            let (mut wait, mut last) = (TRY, None);
            let there = || {
                let answer = probe::once(Protocol::Tcp, to, wait);
                if answer == Answer::Timeout {
                    wait = (wait * 2).min(LONGEST_TRY);
                }
                let arrived = matches!(answer, Answer::Pod { port, .. } if port == endpoint);
                last = Some(answer);
                arrived.then_some(())
            };
            let arrived = world.place(node.name)?.run(|| os::poll(TIMEOUT, there))?;
            if arrived.is_some() {
                return Ok(());
            }
            let last = last.map_or_else(String::new, |answer| answer.to_string());
            bail!(
                "does not program {family:?} any more: {to} last gave \"{last}\"\n{}",
                world.log_end(node.name)
            )
        });
        if let Err(error) = arrived {
            // A proxy that ended explains more than one that is silent.
            worlds.iter_mut().try_for_each(World::check)?;
            return Err(error);
        }
        Ok(())
    }
}

/// Asks for every node, family and world at once; the first failure is returned.
fn each(worlds: &[World], ask: impl Fn(&World, &Host, Family) -> Result<()> + Sync) -> Result<()> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for world in worlds {
            for node in plan::nodes() {
                for family in Family::BOTH {
                    let thread = scope.spawn(move || {
                        ask(world, node, family)
                            .map_err(|error| error.context(format!("{}: {}", world.key, node.name)))
                    });
                    threads.push(thread);
                }
            }
        }
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn service(port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "lab-sentinel", "namespace": "default" },
        "spec": {
            "clusterIP": ADDRESSES[0],
            "clusterIPs": ADDRESSES,
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{ "name": "sentinel", "port": port, "protocol": "TCP" }],
        },
    })
}

fn slice(family: Family, port: u16) -> Value {
    let wire = plan::find("wire").expect("every world has a wire");
    let (name, kind) = match family {
        Family::V4 => ("lab-sentinel-4", "IPv4"),
        Family::V6 => ("lab-sentinel-6", "IPv6"),
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": "lab-sentinel" },
        },
        "addressType": kind,
        "endpoints": [{
            "addresses": [wire.address(family).to_string()],
            "conditions": { "ready": true },
        }],
        "ports": [{ "name": "sentinel", "port": port, "protocol": "TCP" }],
    })
}
