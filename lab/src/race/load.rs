//! The cluster that is raced on: many Services, each with an EndpointSlice, and changes to them.
//!
//! Every endpoint answers: in each lane one pod holds all addresses that occur here. A changed
//! endpoint gets an address that was never used before, so that its arrival can be told from
//! everything else.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::api::Api;

/// How many requests are on their way at once while objects are loaded.
const WORKERS: usize = 32;
const TEAMS: u32 = 10;
/// The first address of changed endpoints. From here to 10.207.255.255 they are all different.
pub const FRESH: u32 = 0x0ac8_0000;
const MOST_FRESH: u32 = 8 << 16;
/// Below are cluster IPs, one after the other, from 10.96.0.0/16.
const FIRST_CLUSTER_IP: u32 = 0x0a60_0100;
/// The most Services that fit into the network of cluster IPs.
pub const MOST_SERVICES: u32 = 60_000;

/// What is in the API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    runtime: Handle,
    services: u32,
    endpoints: u32,
    fresh: Arc<AtomicU32>,
}

impl Cluster {
    /// Nothing yet; Services will have so many endpoints each.
    pub fn new(api: &Api, endpoints: u32) -> Result<Self> {
        let (client, runtime) = api.client();
        for team in 0..TEAMS {
            api.apply(&json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace(team) },
            }))?;
        }
        Ok(Self {
            client,
            runtime,
            services: 0,
            endpoints,
            fresh: Arc::default(),
        })
    }

    pub fn services(&self) -> u32 {
        self.services
    }

    /// Where requests run.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Adds Services until there are so many; `progress` gets how far it is.
    pub fn grow(&mut self, services: u32, mut progress: impl FnMut(u32)) -> Result<()> {
        let first = self.services;
        let this = self.clone();
        self.runtime.clone().block_on(async {
            let mut running = JoinSet::new();
            for n in first..services {
                if running.len() >= WORKERS {
                    joined(running.join_next().await)?;
                }
                if n % 500 == 0 {
                    progress(n);
                }
                let this = this.clone();
                running.spawn(async move { this.create(n).await });
            }
            while let Some(ended) = running.join_next().await {
                joined(Some(ended))?;
            }
            anyhow::Ok(())
        })?;
        self.services = self.services.max(services);
        Ok(())
    }

    async fn create(&self, n: u32) -> Result<()> {
        let team = namespace(n % TEAMS);
        let services = format!("/api/v1/namespaces/{team}/services");
        send(&self.client, &Method::POST, &services, &service(n)).await?;
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{team}/endpointslices");
        let body = slice(n, self.endpoints, None);
        send(&self.client, &Method::POST, &slices, &body).await
    }

    /// An address that no endpoint ever had; its number counts from 0.
    pub fn fresh(&self) -> Result<u32> {
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        if number >= MOST_FRESH {
            bail!("all addresses for changed endpoints are used up");
        }
        Ok(number)
    }

    /// Replaces the first endpoint of a Service by the one with this number.
    pub async fn change(&self, n: u32, number: u32) -> Result<()> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{}",
            namespace(n % TEAMS),
            name(n)
        );
        let body = slice(n, self.endpoints, Some(address_of(number)));
        send(&self.client, &Method::PUT, &path, &body).await
    }
}

/// The changed endpoint with this number.
pub fn address_of(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FRESH + number)
}

/// Where a Service answers, on port 80.
pub fn cluster_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_CLUSTER_IP + n)
}

/// An endpoint as it is when nobody changed it.
pub fn endpoint(n: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((((10 << 8) + 128 + number) << 16) + 1 + n)
}

fn namespace(team: u32) -> String {
    format!("team-{team}")
}

fn name(n: u32) -> String {
    format!("service-{n}")
}

fn service(n: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name(n), "namespace": namespace(n % TEAMS) },
        "spec": {
            "clusterIP": cluster_ip(n).to_string(),
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }],
        },
    })
}

fn slice(n: u32, endpoints: u32, first: Option<Ipv4Addr>) -> Value {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|number| {
            let address = first.filter(|_| number == 0);
            let address = address.unwrap_or_else(|| endpoint(n, number));
            json!({
                "addresses": [address.to_string()],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": format!("node-{}", (n + number) % 50),
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name(n),
            "namespace": namespace(n % TEAMS),
            "labels": { "kubernetes.io/service-name": name(n) },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    })
}

async fn send(client: &Client, method: &Method, path: &str, body: &Value) -> Result<()> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(body)?)?;
    let answer = client.request_text(request).await;
    answer
        .map(|_| ())
        .with_context(|| format!("{method} {path}"))
}

fn joined(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    ended.map_or(Ok(()), |ended| ended?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_services_and_endpoints_do_not_meet() {
        assert_eq!(cluster_ip(0).to_string(), "10.96.1.0");
        assert_eq!(cluster_ip(MOST_SERVICES - 1).octets()[..2], [10, 96]);
        assert_eq!(endpoint(0, 0).to_string(), "10.128.0.1");
        assert_eq!(endpoint(300, 9).to_string(), "10.137.1.45");
        assert_eq!(address_of(258).to_string(), "10.200.1.2");
        assert_eq!(address_of(MOST_FRESH - 1).to_string(), "10.207.255.255");
    }

    #[test]
    fn a_changed_slice_differs_in_one_endpoint() {
        let (before, after) = (slice(7, 2, None), slice(7, 2, Some(address_of(3))));
        assert_eq!(after["endpoints"][0]["addresses"][0], "10.200.0.3");
        assert_eq!(before["endpoints"][1], after["endpoints"][1]);
    }
}
