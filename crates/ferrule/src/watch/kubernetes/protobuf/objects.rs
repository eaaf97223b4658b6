//! Messages of the API as the types that JSON is read into.
//!
//! The numbers are those of `generated.proto` of `k8s.io/api` (core, discovery and networking v1) and
//! of `k8s.io/apimachinery` (meta v1). Of a field that comes twice the last one counts, and
//! messages are merged, as protobuf has it.

use ferrule_core::issue::Kind;
use jiff::Timestamp;

use super::{Damage, Field, Fields, MOST_ENTRIES};
use crate::watch::api;
use crate::watch::kubernetes::endpoints::{Address, Endpoints, Port, Subset};
use crate::watch::kubernetes::failure::{Detail, Details, Refusal};
use crate::watch::kubernetes::intake::{ListMetadata, Names};

/// An object that can be read from protobuf, where the message does not say what it is.
pub trait Message: Sized {
    fn read(kind: Kind, message: &[u8]) -> Result<Self, Damage>;
}

impl Message for api::Object {
    fn read(kind: Kind, message: &[u8]) -> Result<Self, Damage> {
        let mut object = Self::default();
        each(message, |field| {
            match (field.number, kind) {
                (1, _) => read_metadata(&mut object.metadata, field.bytes()?)?,
                (2, Kind::Service) => service_spec(&mut object.spec, field.bytes()?)?,
                (3, Kind::Service) => service_status(&mut object.status, field.bytes()?)?,
                (2, Kind::Node) => node_spec(&mut object.spec, field.bytes()?)?,
                (3, Kind::Node) => node_status(&mut object.status, field.bytes()?)?,
                (2, Kind::ServiceCidr) => each(field.bytes()?, |field| match field.number {
                    1 => push(&mut object.spec.cidrs, field, Field::text),
                    _ => Ok(()),
                })?,
                (2, Kind::EndpointSlice) => push(&mut object.endpoints, field, endpoint)?,
                (3, Kind::EndpointSlice) => push(&mut object.ports, field, slice_port)?,
                (4, Kind::EndpointSlice) => object.address_type = field.text()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(object)
    }
}

impl Message for Endpoints {
    fn read(_: Kind, message: &[u8]) -> Result<Self, Damage> {
        let mut object = Self::default();
        each(message, |field| match field.number {
            1 => read_metadata(&mut object.metadata, field.bytes()?),
            2 => push(&mut object.subsets, field, subset),
            _ => Ok(()),
        })?;
        Ok(object)
    }
}

/// `metadata` of an object of any kind.
pub fn metadata(object: &[u8]) -> Result<api::Metadata, Damage> {
    let mut metadata = api::Metadata::default();
    each(object, |field| match field.number {
        1 => read_metadata(&mut metadata, field.bytes()?),
        _ => Ok(()),
    })?;
    Ok(metadata)
}

/// Who an object is, of as much of it as can be read.
pub fn names(object: &[u8]) -> Names {
    let mut names = Names::default();
    for field in Fields::of(object).map_while(Result::ok) {
        let Ok(metadata) = field.bytes() else {
            continue;
        };
        if field.number != 1 {
            continue;
        }
        for field in Fields::of(metadata).map_while(Result::ok) {
            let slot = match field.number {
                1 => &mut names.name,
                3 => &mut names.namespace,
                6 => &mut names.resource_version,
                _ => continue,
            };
            *slot = field.text().unwrap_or_default();
        }
    }
    names
}

/// `metadata` of a list.
pub fn list_metadata(message: &[u8]) -> Result<ListMetadata, Damage> {
    let mut metadata = ListMetadata::default();
    each(message, |field| {
        match field.number {
            2 => metadata.resource_version = field.text()?,
            3 => metadata.next = field.text()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(metadata)
}

/// A `Status`.
pub fn refusal(message: &[u8]) -> Result<Refusal, Damage> {
    let mut refusal = Refusal::default();
    each(message, |field| {
        match field.number {
            3 => refusal.message = field.text()?,
            4 => refusal.reason = field.text()?,
            5 => {
                let details = refusal.details.get_or_insert_default();
                read_details(details, field.bytes()?)?;
            }
            6 => refusal.code = u16::try_from(field.int()?).unwrap_or_default(),
            _ => {}
        }
        Ok(())
    })?;
    Ok(refusal)
}

fn read_details(details: &mut Details, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| match field.number {
        4 => push(&mut details.causes, field, |field| {
            let mut cause = Detail::default();
            each(field.bytes()?, |field| {
                if field.number == 1 {
                    cause.reason = field.text()?;
                }
                Ok(())
            })?;
            Ok(cause)
        }),
        5 => {
            details.retry_after_seconds = u64::try_from(field.int()?).unwrap_or_default();
            Ok(())
        }
        _ => Ok(()),
    })
}

fn read_metadata(metadata: &mut api::Metadata, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| {
        match field.number {
            1 => metadata.name = field.text()?,
            3 => metadata.namespace = field.text()?,
            6 => metadata.resource_version = field.text()?,
            8 => metadata.creation_timestamp = time(field)?,
            9 => metadata.deletion_timestamp = time(field)?,
            11 => {
                let (key, value) = pair(field)?;
                let labels = &mut metadata.labels;
                match key {
                    b"service.kubernetes.io/service-proxy-name" => {
                        labels.proxy_name = Some(value.text()?);
                    }
                    b"service.kubernetes.io/headless" => labels.headless = Some(value.text()?),
                    b"kubernetes.io/service-name" => labels.service_name = Some(value.text()?),
                    b"topology.kubernetes.io/zone" => labels.zone = Some(value.text()?),
                    _ => {}
                }
            }
            12 => {
                let (key, value) = pair(field)?;
                let annotations = &mut metadata.annotations;
                match key {
                    b"endpoints.kubernetes.io/last-change-trigger-time" => {
                        annotations.trigger_time = Some(value.text()?);
                    }
                    b"ferrule.dev/ipvs-scheduler" => {
                        annotations.ipvs_scheduler = Some(value.text()?);
                    }
                    b"ferrule.dev/proxy-protocol" => {
                        annotations.proxy_protocol = Some(value.text()?);
                    }
                    b"k8s.io/initial-events-end" => {
                        annotations.initial_events_end = Some(value.text()?);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    })
}

/// One entry of a map of texts. Few keys matter, so no text is made of the others.
fn pair(field: Field<'_>) -> Result<(&[u8], Field<'_>), Damage> {
    let (mut key, mut value) = (&b""[..], Field::EMPTY);
    for field in Fields::of(field.bytes()?) {
        let field = field?;
        match field.number {
            1 => key = field.bytes()?,
            2 => value = field,
            _ => {}
        }
    }
    Ok((key, value))
}

/// A time as JSON has it: to the second, and nothing for none.
fn time(field: Field<'_>) -> Result<Option<String>, Damage> {
    let mut seconds = None;
    each(field.bytes()?, |field| {
        if field.number == 1 {
            seconds = Some(field.long()?);
        }
        Ok(())
    })?;
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    Ok(time.map(|time| time.to_string()))
}

fn service_spec(spec: &mut api::Spec, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| {
        match field.number {
            1 => push(&mut spec.ports, field, service_port)?,
            3 => spec.cluster_ip = field.text()?,
            4 => spec.kind = field.text()?,
            5 => push(&mut spec.external_ips, field, Field::text)?,
            7 => spec.session_affinity = field.text()?,
            9 => push(&mut spec.load_balancer_source_ranges, field, Field::text)?,
            11 => spec.external_traffic_policy = field.text()?,
            12 => spec.health_check_node_port = field.int()?,
            14 => {
                let client_ip = &mut spec.session_affinity_config.client_ip;
                each(field.bytes()?, |field| match field.number {
                    1 => each(field.bytes()?, |field| {
                        if field.number == 1 {
                            client_ip.timeout_seconds = Some(field.int()?);
                        }
                        Ok(())
                    }),
                    _ => Ok(()),
                })?;
            }
            18 => push(&mut spec.cluster_ips, field, Field::text)?,
            19 => push(&mut spec.ip_families, field, Field::text)?,
            22 => spec.internal_traffic_policy = field.text()?,
            _ => {}
        }
        Ok(())
    })
}

fn service_port(field: Field<'_>) -> Result<api::ServicePort, Damage> {
    let mut port = api::ServicePort::default();
    each(field.bytes()?, |field| {
        match field.number {
            1 => port.name = field.text()?,
            2 => port.protocol = field.text()?,
            3 => port.port = field.int()?,
            5 => port.node_port = field.int()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(port)
}

fn service_status(status: &mut api::Status, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| match field.number {
        1 => each(field.bytes()?, |field| match field.number {
            1 => push(&mut status.load_balancer.ingress, field, ingress),
            _ => Ok(()),
        }),
        _ => Ok(()),
    })
}

fn ingress(field: Field<'_>) -> Result<api::Ingress, Damage> {
    let mut ingress = api::Ingress::default();
    each(field.bytes()?, |field| {
        match field.number {
            1 => ingress.ip = field.text()?,
            3 => ingress.ip_mode = Some(field.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(ingress)
}

fn node_spec(spec: &mut api::Spec, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| match field.number {
        1 => {
            spec.pod_cidr = field.text()?;
            Ok(())
        }
        5 => push(&mut spec.taints, field, |field| {
            let mut taint = api::Taint::default();
            each(field.bytes()?, |field| {
                if field.number == 1 {
                    taint.key = field.text()?;
                }
                Ok(())
            })?;
            Ok(taint)
        }),
        7 => push(&mut spec.pod_cidrs, field, Field::text),
        _ => Ok(()),
    })
}

fn node_status(status: &mut api::Status, message: &[u8]) -> Result<(), Damage> {
    each(message, |field| match field.number {
        5 => push(&mut status.addresses, field, |field| {
            let mut address = api::NodeAddress::default();
            each(field.bytes()?, |field| {
                match field.number {
                    1 => address.kind = field.text()?,
                    2 => address.address = field.text()?,
                    _ => {}
                }
                Ok(())
            })?;
            Ok(address)
        }),
        _ => Ok(()),
    })
}

fn endpoint(field: Field<'_>) -> Result<api::Endpoint, Damage> {
    let mut endpoint = api::Endpoint::default();
    each(field.bytes()?, |field| {
        match field.number {
            1 => push(&mut endpoint.addresses, field, Field::text)?,
            2 => {
                let conditions = &mut endpoint.conditions;
                each(field.bytes()?, |field| {
                    match field.number {
                        1 => conditions.ready = Some(field.bool()?),
                        2 => conditions.serving = Some(field.bool()?),
                        3 => conditions.terminating = Some(field.bool()?),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
            6 => endpoint.node_name = Some(field.text()?),
            8 => {
                let hints = &mut endpoint.hints;
                each(field.bytes()?, |field| match field.number {
                    1 => push(&mut hints.for_zones, field, hint),
                    2 => push(&mut hints.for_nodes, field, hint),
                    _ => Ok(()),
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(endpoint)
}

fn hint(field: Field<'_>) -> Result<api::Hint, Damage> {
    let mut hint = api::Hint::default();
    each(field.bytes()?, |field| {
        if field.number == 1 {
            hint.name = field.text()?;
        }
        Ok(())
    })?;
    Ok(hint)
}

fn slice_port(field: Field<'_>) -> Result<api::SlicePort, Damage> {
    let mut port = api::SlicePort::default();
    each(field.bytes()?, |field| {
        match field.number {
            1 => port.name = Some(field.text()?),
            2 => port.protocol = Some(field.text()?),
            3 => port.port = Some(field.int()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(port)
}

fn subset(field: Field<'_>) -> Result<Subset, Damage> {
    let mut subset = Subset::default();
    each(field.bytes()?, |field| match field.number {
        1 => push(&mut subset.addresses, field, address),
        2 => push(&mut subset.not_ready_addresses, field, address),
        3 => push(&mut subset.ports, field, endpoints_port),
        _ => Ok(()),
    })?;
    Ok(subset)
}

fn address(field: Field<'_>) -> Result<Address, Damage> {
    let mut address = Address::default();
    each(field.bytes()?, |field| {
        match field.number {
            1 => address.ip = field.text()?,
            4 => address.node_name = Some(field.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(address)
}

/// Here a field without a value is written as an empty one, which JSON leaves out.
fn endpoints_port(field: Field<'_>) -> Result<Port, Damage> {
    let mut port = Port::default();
    let given = |text: String| (!text.is_empty()).then_some(text);
    each(field.bytes()?, |field| {
        match field.number {
            1 => port.name = given(field.text()?),
            2 => port.number = Some(field.int()?),
            3 => port.protocol = given(field.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(port)
}

/// Hands every field of a message to `take`.
fn each<'a>(
    message: &'a [u8],
    mut take: impl FnMut(Field<'a>) -> Result<(), Damage>,
) -> Result<(), Damage> {
    Fields::of(message).try_for_each(|field| take(field?))
}

/// One more entry of a list.
fn push<'a, T>(
    list: &mut Vec<T>,
    field: Field<'a>,
    read: impl FnOnce(Field<'a>) -> Result<T, Damage>,
) -> Result<(), Damage> {
    if list.len() == MOST_ENTRIES {
        return Err(Damage::Entries(field.number));
    }
    list.push(read(field)?);
    Ok(())
}
