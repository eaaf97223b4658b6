//! API objects as they are written: only the fields a node proxy needs.
//!
//! One struct serves all kinds. The keys of an object come in any order, so the kind may be known
//! last; a union of all fields decodes in one pass and every error has an exact position.
//!
//! Decoding is lenient: unknown fields are skipped, `null` means the default, words stay strings
//! and port numbers may be any integer. What makes no sense is for `convert` to say, beside the
//! rest of the object, and not a reason to lose all of it.

use serde::{Deserialize, Deserializer};

/// An API object of any kind we watch. What kind that is, is known beside it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Object {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: Spec,
    #[serde(deserialize_with = "nullable")]
    pub status: Status,
    /// EndpointSlice: `IPv4`, `IPv6` or `FQDN`.
    #[serde(deserialize_with = "nullable")]
    pub address_type: String,
    /// EndpointSlice.
    #[serde(deserialize_with = "list")]
    pub endpoints: Vec<Endpoint>,
    /// EndpointSlice.
    #[serde(deserialize_with = "list")]
    pub ports: Vec<SlicePort>,
}

/// `metadata`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub annotations: Annotations,
    /// How far the cluster's history had come when the object looked like this.
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
}

/// One taint of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    #[serde(deserialize_with = "nullable")]
    pub key: String,
}

/// The labels that mean something to us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// Someone else proxies this Service.
    #[serde(
        rename = "service.kubernetes.io/service-proxy-name",
        deserialize_with = "present"
    )]
    pub proxy_name: Option<String>,
    /// The slice belongs to a headless Service.
    #[serde(
        rename = "service.kubernetes.io/headless",
        deserialize_with = "present"
    )]
    pub headless: Option<String>,
    /// The Service a slice belongs to.
    #[serde(rename = "kubernetes.io/service-name", deserialize_with = "present")]
    pub service_name: Option<String>,
    /// The zone of a Node.
    #[serde(rename = "topology.kubernetes.io/zone", deserialize_with = "present")]
    pub zone: Option<String>,
}

/// The annotations that mean something to us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// When the change happened that led to this state of a slice.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub trigger_time: Option<String>,
    /// How mode ipvs chooses endpoints of a Service.
    #[serde(rename = "ferrule.dev/ipvs-scheduler")]
    pub ipvs_scheduler: Option<String>,
    /// Whether mode userspace tells endpoints the client's address.
    #[serde(rename = "ferrule.dev/proxy-protocol")]
    pub proxy_protocol: Option<String>,
    /// On a bookmark: the list is complete.
    #[serde(rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<String>,
}

/// `spec` of a Service, Node or ServiceCIDR.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// Service: `type`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "list")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub ip_families: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "list")]
    pub external_ips: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub internal_traffic_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub external_traffic_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub health_check_node_port: i64,
    #[serde(deserialize_with = "nullable")]
    pub session_affinity: String,
    #[serde(deserialize_with = "nullable")]
    pub session_affinity_config: SessionAffinityConfig,
    #[serde(deserialize_with = "list")]
    pub ports: Vec<ServicePort>,
    /// Node.
    #[serde(rename = "podCIDR", deserialize_with = "nullable")]
    pub pod_cidr: String,
    /// Node.
    #[serde(rename = "podCIDRs", deserialize_with = "list")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
    /// ServiceCIDR.
    #[serde(deserialize_with = "list")]
    pub cidrs: Vec<String>,
}

/// `spec.sessionAffinityConfig` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    pub client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<i64>,
}

/// One entry of `spec.ports` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub protocol: String,
    #[serde(deserialize_with = "nullable")]
    pub port: i64,
    #[serde(deserialize_with = "nullable")]
    pub node_port: i64,
}

/// `status` of a Service or Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancer,
    /// Node.
    #[serde(deserialize_with = "list")]
    pub addresses: Vec<NodeAddress>,
}

/// `status.loadBalancer` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    #[serde(deserialize_with = "list")]
    pub ingress: Vec<Ingress>,
}

/// One entry of `status.loadBalancer.ingress`. A `hostname` means nothing to us.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    #[serde(deserialize_with = "nullable")]
    pub ip: String,
    pub ip_mode: Option<String>,
}

/// One entry of `status.addresses` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

/// One entry of `endpoints` of an EndpointSlice.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    #[serde(deserialize_with = "list")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: Conditions,
    #[serde(deserialize_with = "nullable")]
    pub hints: Hints,
    pub node_name: Option<String>,
}

/// `conditions` of an endpoint; each may be unknown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    #[serde(deserialize_with = "list")]
    pub for_zones: Vec<Hint>,
    #[serde(deserialize_with = "list")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or node an endpoint is meant for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Hint {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
}

/// One entry of `ports` of an EndpointSlice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

/// `null` is the default.
fn nullable<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `null` is the empty list, and an entry that is `null` is the default.
///
/// Entries are kept rather than dropped: field paths in issues count them.
pub fn list<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    let entries: Option<Vec<Option<T>>> = Option::deserialize(deserializer)?;
    Ok(entries
        .unwrap_or_default()
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect())
}

/// A label that is there, even if its value is `null`: the API server stores that as empty.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    nullable(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_means_the_default_everywhere() {
        let object: Object = serde_json::from_str(
            r#"{"apiVersion": null, "kind": "Service", "status": null,
                "metadata": {"name": "a", "namespace": null, "annotations": null,
                             "creationTimestamp": null},
                "spec": {"clusterIP": null, "clusterIPs": [null], "ports": [null, {"port": null}],
                         "sessionAffinityConfig": {"clientIP": null}},
                "endpoints": [null, {"addresses": null, "conditions": null, "hints": null}],
                "ports": [null]}"#,
        )
        .unwrap();
        assert_eq!(object.metadata.name, "a");
        assert_eq!(object.spec.cluster_ips, [""]);
        assert_eq!(object.spec.ports.len(), 2);
        assert_eq!(object.endpoints.len(), 2);
        assert_eq!(object.ports[0].port, None);
    }

    #[test]
    fn unknown_fields_are_skipped_and_odd_numbers_survive() {
        let object: Object = serde_json::from_str(
            r#"{"kind": "Service", "data": [1, {"x": 2}], "spec": {"selector": {"a": "b"},
                "ports": [{"port": 70000, "targetPort": "http"}, {"port": -1}]}}"#,
        )
        .unwrap();
        let ports: Vec<i64> = object.spec.ports.iter().map(|port| port.port).collect();
        assert_eq!(ports, [70_000, -1]);
    }

    #[test]
    fn a_label_without_value_is_present() {
        let object: Object = serde_json::from_str(
            r#"{"metadata": {"labels": {"service.kubernetes.io/headless": null, "other": 1}}}"#,
        )
        .unwrap();
        assert_eq!(object.metadata.labels.headless.as_deref(), Some(""));
        assert_eq!(object.metadata.labels.proxy_name, None);
    }
}
