//! Endpoints of the core API as slices, for servers from before EndpointSlices.
//!
//! In: an `Endpoints` object. Out: objects shaped like EndpointSlices, one per subset and address
//! family, because all endpoints of a slice answer on all its ports and are of one family.

use std::collections::HashMap;
use std::net::IpAddr;

use ferrule_core::issue::ObjectKey;
use ferrule_core::model::{Family, SliceKey, parse_ip};
use ferrule_core::track::Event;
use serde::Deserialize;

use crate::watch::{api, convert};

/// An `Endpoints` object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    pub metadata: api::Metadata,
    #[serde(deserialize_with = "api::list")]
    pub subsets: Vec<Subset>,
}

/// Addresses that share their ports.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Subset {
    #[serde(deserialize_with = "api::list")]
    pub addresses: Vec<Address>,
    #[serde(deserialize_with = "api::list")]
    pub not_ready_addresses: Vec<Address>,
    #[serde(deserialize_with = "api::list")]
    pub ports: Vec<Port>,
}

/// One address, and the Node it is on.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Address {
    pub ip: String,
    pub node_name: Option<String>,
}

/// One port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    pub name: Option<String>,
    pub protocol: Option<String>,
    #[serde(rename = "port")]
    pub number: Option<i64>,
}

/// Remembers which objects became more than one slice, so that none of them is left behind.
#[derive(Debug, Default)]
pub struct Parts {
    /// Few: most objects have one subset and one family.
    counts: HashMap<SliceKey, usize>,
    /// The same as it was before the list that is under way.
    before: HashMap<SliceKey, usize>,
}

impl Parts {
    /// A full list begins; until it is complete, what was known before still counts.
    pub fn begin_list(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        self.before.extend(counts);
    }

    /// The full list is complete.
    pub fn end_list(&mut self) {
        self.before = HashMap::new();
    }

    /// The events that keep the further slices of an object nobody can read; the first one is the
    /// caller's.
    pub fn keep(&mut self, metadata: &api::Metadata, events: &mut Vec<Event>) {
        let key = SliceKey::new(&metadata.namespace, &metadata.name);
        let known = self.counts.get(&key).or_else(|| self.before.get(&key));
        let Some(&count) = known else { return };
        events.extend((1..count).map(|part| Event::Undecodable {
            key: part_key(metadata, part),
            issues: Vec::new(),
        }));
        self.counts.insert(key, count);
    }

    /// The events of an object as it looks now.
    pub fn put(&mut self, object: Endpoints, node_name: &str, events: &mut Vec<Event>) {
        let Endpoints { metadata, subsets } = object;
        let key = SliceKey::new(&metadata.namespace, &metadata.name);
        let slices = subsets.into_iter().flat_map(split);
        let mut count = 0;
        for (family, endpoints, ports) in slices {
            let slice = api::Object {
                metadata: slice_metadata(&metadata, count),
                address_type: family.as_str().to_owned(),
                endpoints,
                ports,
                ..api::Object::default()
            };
            events.push(convert::convert_part(slice, node_name));
            count += 1;
        }
        self.drop_from(&key, &metadata, count, events);
        if count > 1 {
            self.counts.insert(key, count);
        }
    }

    /// The events of an object that is gone.
    pub fn gone(&mut self, metadata: &api::Metadata, events: &mut Vec<Event>) {
        let key = SliceKey::new(&metadata.namespace, &metadata.name);
        self.drop_from(&key, metadata, 0, events);
    }

    fn drop_from(
        &mut self,
        key: &SliceKey,
        metadata: &api::Metadata,
        first: usize,
        events: &mut Vec<Event>,
    ) {
        let count = self.counts.remove(key).unwrap_or(1);
        events.extend((first..count).map(|part| Event::Gone {
            key: part_key(metadata, part),
            issues: Vec::new(),
        }));
    }
}

fn part_key(metadata: &api::Metadata, part: usize) -> ObjectKey {
    let name = part_name(&metadata.name, part);
    ObjectKey::Slice(SliceKey::new(&metadata.namespace, &name))
}

/// The object's own name, and for further parts one that no object can have.
fn part_name(name: &str, part: usize) -> String {
    match part {
        0 => name.to_owned(),
        _ => format!("{name}#{part}"),
    }
}

fn slice_metadata(metadata: &api::Metadata, part: usize) -> api::Metadata {
    api::Metadata {
        name: part_name(&metadata.name, part),
        namespace: metadata.namespace.clone(),
        labels: api::Labels {
            service_name: Some(metadata.name.clone()),
            headless: metadata.labels.headless.clone(),
            proxy_name: metadata.labels.proxy_name.clone(),
            ..api::Labels::default()
        },
        annotations: api::Annotations {
            trigger_time: metadata.annotations.trigger_time.clone(),
            ..api::Annotations::default()
        },
        ..api::Metadata::default()
    }
}

type Slice = (Family, Vec<api::Endpoint>, Vec<api::SlicePort>);

/// A subset as slices: one per family it has addresses of.
fn split(subset: Subset) -> impl Iterator<Item = Slice> {
    let Subset {
        addresses,
        not_ready_addresses,
        ports,
    } = subset;
    let ready = addresses.into_iter().map(|address| (address, true));
    let not_ready = not_ready_addresses
        .into_iter()
        .map(|address| (address, false));
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for (address, ready) in ready.chain(not_ready) {
        match parse_ip(&address.ip) {
            Some(IpAddr::V6(_)) => v6.push(endpoint(address, ready)),
            // What is no address at all is for the conversion to complain about.
            Some(IpAddr::V4(_)) | None => v4.push(endpoint(address, ready)),
        }
    }
    [(Family::V4, v4), (Family::V6, v6)]
        .into_iter()
        .filter(|(_, endpoints)| !endpoints.is_empty())
        .map(move |(family, endpoints)| (family, endpoints, ports.iter().map(port).collect()))
}

fn endpoint(address: Address, ready: bool) -> api::Endpoint {
    api::Endpoint {
        addresses: vec![address.ip],
        conditions: api::Conditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: Some(false),
        },
        node_name: address.node_name,
        ..api::Endpoint::default()
    }
}

fn port(port: &Port) -> api::SlicePort {
    api::SlicePort {
        // The only port may go without a name here; a slice then has the empty one.
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: port.protocol.clone(),
        port: port.number,
    }
}

#[cfg(test)]
mod tests {
    use ferrule_core::model::ServiceKey;
    use ferrule_core::track::Tracker;

    use super::*;

    fn endpoints(json: &str) -> Endpoints {
        serde_json::from_str(json).unwrap()
    }

    fn tell(tracker: &mut Tracker, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            tracker.on(event);
        }
    }

    /// `slice family port endpoint…` of all slices of `default/web`.
    fn slices(tracker: &Tracker) -> Vec<String> {
        let entry = tracker.entry(&ServiceKey::new("default", "web"));
        let slices = entry.map(|entry| entry.slices.clone()).unwrap_or_default();
        let line = |slice: &std::sync::Arc<ferrule_core::model::Slice>| {
            let ports: Vec<_> = slice
                .ports
                .iter()
                .map(|port| format!("{:?}={}", &*port.name, port.port))
                .collect();
            let endpoints = slice.endpoints.iter().map(|endpoint| {
                let mark = match (endpoint.ready, endpoint.serving, endpoint.local) {
                    (true, true, true) => "!",
                    (true, true, false) => "",
                    (false, false, _) => "-",
                    _ => "?",
                };
                format!("{}{mark}", endpoint.ip)
            });
            let endpoints: Vec<_> = endpoints.collect();
            format!(
                "{} {} {}",
                slice.key.as_str(),
                ports.join(","),
                endpoints.join(",")
            )
        };
        slices.iter().map(line).collect()
    }

    #[test]
    fn subsets_become_slices_by_ports_and_family() {
        let mut tracker = Tracker::new(std::time::SystemTime::UNIX_EPOCH);
        let mut parts = Parts::default();
        let mut events = Vec::new();
        let object = endpoints(
            r#"{"metadata": {"namespace": "default", "name": "web"}, "subsets": [
                {"addresses": [{"ip": "10.0.0.1", "nodeName": "here"}, {"ip": "fd00::1"}],
                 "notReadyAddresses": [{"ip": "10.0.0.2"}],
                 "ports": [{"port": 80}]},
                {"addresses": [{"ip": "10.0.0.3"}],
                 "ports": [{"name": "x", "port": 81, "protocol": "UDP"}]},
                {"addresses": null, "ports": null}]}"#,
        );
        parts.put(object, "here", &mut events);
        tell(&mut tracker, &mut events);
        assert_eq!(
            slices(&tracker),
            [
                "default/web \"\"=80 10.0.0.1!,10.0.0.2-",
                "default/web#1 \"\"=80 fd00::1",
                "default/web#2 \"x\"=81 10.0.0.3",
            ]
        );
        // Fewer parts now; the others must not stay.
        let object = endpoints(
            r#"{"metadata": {"namespace": "default", "name": "web"}, "subsets": [
                {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"port": 80}]}]}"#,
        );
        parts.put(object, "here", &mut events);
        tell(&mut tracker, &mut events);
        assert_eq!(slices(&tracker), ["default/web \"\"=80 10.0.0.3"]);
        // None at all, though the object is there.
        let object =
            endpoints(r#"{"metadata": {"namespace": "default", "name": "web"}, "subsets": null}"#);
        parts.put(object, "here", &mut events);
        tell(&mut tracker, &mut events);
        assert_eq!(slices(&tracker), [""; 0]);
    }

    #[test]
    fn all_parts_of_a_deleted_object_go() {
        let mut tracker = Tracker::new(std::time::SystemTime::UNIX_EPOCH);
        let mut parts = Parts::default();
        let mut events = Vec::new();
        let object = endpoints(
            r#"{"metadata": {"namespace": "default", "name": "web"}, "subsets": [
                {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}]}"#,
        );
        let metadata = api::Metadata {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            ..api::Metadata::default()
        };
        parts.put(object, "here", &mut events);
        parts.gone(&metadata, &mut events);
        tell(&mut tracker, &mut events);
        assert_eq!(slices(&tracker), [""; 0]);
        assert!(parts.counts.is_empty());
    }

    #[test]
    fn endpoints_of_headless_and_otherwise_proxied_services_are_passed_over() {
        for label in ["headless", "service-proxy-name"] {
            let object = endpoints(&format!(
                r#"{{"metadata": {{"namespace": "default", "name": "web",
                     "labels": {{"service.kubernetes.io/{label}": ""}}}},
                    "subsets": [{{"addresses": [{{"ip": "10.0.0.1"}}]}}]}}"#
            ));
            let mut events = Vec::new();
            Parts::default().put(object, "here", &mut events);
            assert!(matches!(events[..], [Event::Gone { .. }]), "{events:?}");
        }
    }
}
