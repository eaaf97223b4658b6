//! What the API server would have filled in before a node proxy ever saw the object.

use ferrule_core::issue::Kind;
use ferrule_core::model::{DEFAULT_AFFINITY_SECONDS, Family, parse_ip};

use crate::watch::api;

/// Completes an object as its user may leave it.
pub(super) fn fill_in(kind: Kind, object: &mut api::Object) {
    match kind {
        Kind::Service => {
            fill_in_namespace(&mut object.metadata);
            fill_in_service(&mut object.spec);
        }
        Kind::EndpointSlice => {
            fill_in_namespace(&mut object.metadata);
            for port in &mut object.ports {
                port.name.get_or_insert_default();
                port.protocol.get_or_insert_with(|| "TCP".to_owned());
            }
        }
        Kind::Node | Kind::ServiceCidr => {}
    }
}

fn fill_in_namespace(metadata: &mut api::Metadata) {
    if metadata.namespace.is_empty() {
        metadata.namespace.push_str("default");
    }
}

/// One of `clusterIP` and `clusterIPs` is enough, and their families show by themselves.
fn fill_in_service(spec: &mut api::Spec) {
    if spec.cluster_ip.is_empty()
        && let Some(first) = spec.cluster_ips.first()
    {
        spec.cluster_ip.clone_from(first);
    } else if spec.cluster_ips.is_empty() && !spec.cluster_ip.is_empty() {
        spec.cluster_ips.push(spec.cluster_ip.clone());
    }
    if spec.ip_families.is_empty() {
        let families: Option<Vec<String>> = spec
            .cluster_ips
            .iter()
            .map(|text| parse_ip(text).map(|ip| Family::of(ip).to_string()))
            .collect();
        // Where one cannot be read, positions would shift; `clusterIP` alone decides then.
        spec.ip_families = families.unwrap_or_default();
    }
    if spec.session_affinity == "ClientIP" {
        let seconds = i64::from(DEFAULT_AFFINITY_SECONDS.get());
        spec.session_affinity_config
            .client_ip
            .timeout_seconds
            .get_or_insert(seconds);
    }
}
