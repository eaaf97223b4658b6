//! This node, and the cluster's Service networks.

use ferrule_core::model::{Node, ServiceCidr, parse_ip};
use ferrule_core::track::{Event, Object};

use super::{Report, network, networks};
use crate::watch::api;

/// The cluster autoscaler puts it on a node that it is about to remove; value and effect vary.
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// This node.
pub(super) fn node(object: api::Object, mut report: Report) -> Event {
    let api::Object {
        metadata,
        spec,
        status,
        ..
    } = object;
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (index, entry) in status.addresses.iter().enumerate() {
            if entry.kind != wanted {
                continue;
            }
            match parse_ip(&entry.address) {
                Some(ip) => addresses.push(ip),
                None => report.warn(
                    format!("status.addresses[{index}].address"),
                    format!("{:?} is not an address; it is left out", entry.address),
                ),
            }
        }
    }
    let pod_cidrs = if spec.pod_cidrs.is_empty() && !spec.pod_cidr.is_empty() {
        // Objects from before dual stack have the one field only.
        network(|| "spec.podCIDR".to_owned(), &spec.pod_cidr, &mut report)
            .into_iter()
            .collect()
    } else {
        networks("spec.podCIDRs", &spec.pod_cidrs, &mut report)
    };
    report.put(Object::Node(Node {
        name: metadata.name.into(),
        zone: metadata.labels.zone.map(Into::into),
        addresses: addresses.into(),
        pod_cidrs,
        leaving: metadata.deletion_timestamp.is_some()
            || spec
                .taints
                .iter()
                .any(|taint| taint.key == AUTOSCALER_TAINT),
    }))
}

/// One range of Service addresses.
pub(super) fn service_cidr(object: &api::Object, mut report: Report) -> Event {
    let cidrs = networks("spec.cidrs", &object.spec.cidrs, &mut report);
    report.put(Object::ServiceCidr(ServiceCidr {
        name: object.metadata.name.as_str().into(),
        cidrs,
    }))
}
