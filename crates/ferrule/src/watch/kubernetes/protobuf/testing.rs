//! Writes objects in protobuf that are given in JSON, from tables of their own: for tests.

use serde_json::{Map, Value, json};

use super::MAGIC;
use crate::watch::kubernetes::pace::Random;

/// How a field is written.
enum Type {
    Text,
    Number,
    Bool,
    Time,
    Map,
    Message(&'static [Entry]),
}

type Entry = (&'static str, u32, &'static Type);

const TEXT: &Type = &Type::Text;
const NUMBER: &Type = &Type::Number;
const BOOL: &Type = &Type::Bool;
const TIME: &Type = &Type::Time;
const MAP: &Type = &Type::Map;

const METADATA: &Type = &Type::Message(&[
    ("name", 1, TEXT),
    ("generateName", 2, TEXT),
    ("namespace", 3, TEXT),
    ("uid", 5, TEXT),
    ("resourceVersion", 6, TEXT),
    ("generation", 7, NUMBER),
    ("creationTimestamp", 8, TIME),
    ("deletionTimestamp", 9, TIME),
    ("labels", 11, MAP),
    ("annotations", 12, MAP),
    ("finalizers", 14, TEXT),
]);

const SERVICE: &[Entry] = &[
    ("metadata", 1, METADATA),
    (
        "spec",
        2,
        &Type::Message(&[
            (
                "ports",
                1,
                &Type::Message(&[
                    ("name", 1, TEXT),
                    ("protocol", 2, TEXT),
                    ("port", 3, NUMBER),
                    ("nodePort", 5, NUMBER),
                    ("appProtocol", 6, TEXT),
                ]),
            ),
            ("selector", 2, MAP),
            ("clusterIP", 3, TEXT),
            ("type", 4, TEXT),
            ("externalIPs", 5, TEXT),
            ("sessionAffinity", 7, TEXT),
            ("loadBalancerSourceRanges", 9, TEXT),
            ("externalTrafficPolicy", 11, TEXT),
            ("healthCheckNodePort", 12, NUMBER),
            (
                "sessionAffinityConfig",
                14,
                &Type::Message(&[(
                    "clientIP",
                    1,
                    &Type::Message(&[("timeoutSeconds", 1, NUMBER)]),
                )]),
            ),
            ("clusterIPs", 18, TEXT),
            ("ipFamilies", 19, TEXT),
            ("internalTrafficPolicy", 22, TEXT),
        ]),
    ),
    (
        "status",
        3,
        &Type::Message(&[(
            "loadBalancer",
            1,
            &Type::Message(&[(
                "ingress",
                1,
                &Type::Message(&[("ip", 1, TEXT), ("hostname", 2, TEXT), ("ipMode", 3, TEXT)]),
            )]),
        )]),
    ),
];

const NODE: &[Entry] = &[
    ("metadata", 1, METADATA),
    (
        "spec",
        2,
        &Type::Message(&[
            ("podCIDR", 1, TEXT),
            (
                "taints",
                5,
                &Type::Message(&[("key", 1, TEXT), ("value", 2, TEXT), ("effect", 3, TEXT)]),
            ),
            ("podCIDRs", 7, TEXT),
        ]),
    ),
    (
        "status",
        3,
        &Type::Message(&[(
            "addresses",
            5,
            &Type::Message(&[("type", 1, TEXT), ("address", 2, TEXT)]),
        )]),
    ),
];

const NAME: &Type = &Type::Message(&[("name", 1, TEXT)]);

const SLICE: &[Entry] = &[
    ("metadata", 1, METADATA),
    (
        "endpoints",
        2,
        &Type::Message(&[
            ("addresses", 1, TEXT),
            (
                "conditions",
                2,
                &Type::Message(&[
                    ("ready", 1, BOOL),
                    ("serving", 2, BOOL),
                    ("terminating", 3, BOOL),
                ]),
            ),
            ("hostname", 3, TEXT),
            ("nodeName", 6, TEXT),
            ("zone", 7, TEXT),
            (
                "hints",
                8,
                &Type::Message(&[("forZones", 1, NAME), ("forNodes", 2, NAME)]),
            ),
        ]),
    ),
    (
        "ports",
        3,
        &Type::Message(&[
            ("name", 1, TEXT),
            ("protocol", 2, TEXT),
            ("port", 3, NUMBER),
            ("appProtocol", 4, TEXT),
        ]),
    ),
    ("addressType", 4, TEXT),
];

const CIDR: &[Entry] = &[
    ("metadata", 1, METADATA),
    ("spec", 2, &Type::Message(&[("cidrs", 1, TEXT)])),
];

const ADDRESS: &Type = &Type::Message(&[
    ("ip", 1, TEXT),
    ("hostname", 3, TEXT),
    ("nodeName", 4, TEXT),
]);

const ENDPOINTS: &[Entry] = &[
    ("metadata", 1, METADATA),
    (
        "subsets",
        2,
        &Type::Message(&[
            ("addresses", 1, ADDRESS),
            ("notReadyAddresses", 2, ADDRESS),
            (
                "ports",
                3,
                &Type::Message(&[
                    ("name", 1, TEXT),
                    ("port", 2, NUMBER),
                    ("protocol", 3, TEXT),
                ]),
            ),
        ]),
    ),
];

const STATUS: &[Entry] = &[
    ("status", 2, TEXT),
    ("message", 3, TEXT),
    ("reason", 4, TEXT),
    (
        "details",
        5,
        &Type::Message(&[
            ("name", 1, TEXT),
            ("kind", 3, TEXT),
            (
                "causes",
                4,
                &Type::Message(&[
                    ("reason", 1, TEXT),
                    ("message", 2, TEXT),
                    ("field", 3, TEXT),
                ]),
            ),
            ("retryAfterSeconds", 5, NUMBER),
        ]),
    ),
    ("code", 6, NUMBER),
];

fn table(kind: &str) -> &'static [Entry] {
    match kind {
        "Service" => SERVICE,
        "Node" => NODE,
        "EndpointSlice" => SLICE,
        "ServiceCIDR" => CIDR,
        "Endpoints" => ENDPOINTS,
        "Status" => STATUS,
        other => panic!("no table for {other}"),
    }
}

/// An object as it stands in a list.
pub fn object(kind: &str, object: &Value) -> Vec<u8> {
    fields(table(kind), object)
}

/// An object in a message of its own.
pub fn message(kind: &str, value: &Value) -> Vec<u8> {
    unknown(kind, &object(kind, value))
}

/// A list of objects of this kind, in a message of its own.
pub fn list(kind: &str, list: &Value) -> Vec<u8> {
    let metadata: &[Entry] = &[("resourceVersion", 2, TEXT), ("continue", 3, TEXT)];
    let mut raw = bytes(1, &fields(metadata, &list["metadata"]));
    for item in list["items"].as_array().into_iter().flatten() {
        raw.extend(bytes(2, &object(kind, item)));
    }
    unknown(&format!("{kind}List"), &raw)
}

/// A frame of a watch with its length, of an event as it is in JSON.
pub fn frame(kind: &str, event: &Value) -> Vec<u8> {
    let word = event["type"].as_str().unwrap_or_default();
    let kind = if word == "ERROR" { "Status" } else { kind };
    let extension = bytes(1, &message(kind, &event["object"]));
    let event = [bytes(1, word.as_bytes()), bytes(2, &extension)].concat();
    let length = u32::try_from(event.len()).unwrap();
    [&length.to_be_bytes()[..], &event].concat()
}

fn unknown(kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
    let parts = [bytes(1, &meta), bytes(2, raw), bytes(3, b""), bytes(4, b"")];
    [MAGIC, &parts.concat()].concat()
}

fn fields(entries: &[Entry], object: &Value) -> Vec<u8> {
    let mut message = Vec::new();
    for (name, number, kind) in entries {
        match &object[*name] {
            Value::Null => {}
            Value::Array(values) => {
                for value in values {
                    message.extend(field(*number, kind, value));
                }
            }
            value => message.extend(field(*number, kind, value)),
        }
    }
    message
}

fn field(number: u32, kind: &Type, value: &Value) -> Vec<u8> {
    match (kind, value) {
        (Type::Bool, Value::Bool(value)) => numeral(number, u64::from(*value)),
        (Type::Number, value) if value.is_i64() => {
            numeral(number, value.as_i64().unwrap().cast_unsigned())
        }
        (Type::Time, Value::String(text)) => {
            let time: jiff::Timestamp = text.parse().unwrap();
            let seconds = numeral(1, time.as_second().cast_unsigned());
            bytes(number, &[seconds, numeral(2, 0)].concat())
        }
        (Type::Map, Value::Object(pairs)) => pairs
            .iter()
            .flat_map(|(key, value)| {
                let value = value.as_str().unwrap_or_default();
                let pair = [bytes(1, key.as_bytes()), bytes(2, value.as_bytes())];
                bytes(number, &pair.concat())
            })
            .collect(),
        (Type::Message(entries), Value::Object(_) | Value::Null) => {
            bytes(number, &fields(entries, value))
        }
        (_, Value::String(text)) => bytes(number, text.as_bytes()),
        // Of another type than the table says; nobody will understand it either.
        (_, other) => bytes(number, other.to_string().as_bytes()),
    }
}

pub fn bytes(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = varint((u64::from(number) << 3) | 2);
    field.extend(varint(bytes.len() as u64));
    field.extend(bytes);
    field
}

pub fn numeral(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number) << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// Fields that are lists.
const LISTS: &[&str] = &[
    "addresses",
    "causes",
    "cidrs",
    "clusterIPs",
    "endpoints",
    "externalIPs",
    "finalizers",
    "forNodes",
    "forZones",
    "ingress",
    "ipFamilies",
    "loadBalancerSourceRanges",
    "notReadyAddresses",
    "podCIDRs",
    "ports",
    "subsets",
    "taints",
];

/// An object of this kind, in JSON.
pub fn random(kind: &str, random: &mut Random) -> Value {
    let mut object = random_object(table(kind), random);
    if kind == "Status" {
        object["code"] = json!(random.within(&(0..600)));
    }
    object
}

fn random_object(entries: &[Entry], random: &mut Random) -> Value {
    let mut object = Map::new();
    for (name, _, kind) in entries {
        if LISTS.contains(name) {
            let count = random.within(&(0..4));
            let values = (0..count).map(|_| random_value(kind, random)).collect();
            object.insert((*name).to_owned(), Value::Array(values));
        } else if random.within(&(0..3)) > 0 {
            let value = match *name {
                "retryAfterSeconds" => json!(random.within(&(0..100))),
                _ => random_value(kind, random),
            };
            object.insert((*name).to_owned(), value);
        }
    }
    Value::Object(object)
}

fn random_value(kind: &Type, random: &mut Random) -> Value {
    let mut pick = |from: &[Value]| {
        let at = random.within(&(0..from.len() as u64));
        from[usize::try_from(at).unwrap()].clone()
    };
    match kind {
        Type::Text => pick(&[
            json!("a"),
            json!("10.0.0.1"),
            json!("fd00::1"),
            json!("http"),
            json!("\u{fc}\u{1f600}"),
            json!("long".repeat(60)),
        ]),
        Type::Number => pick(&[
            json!(0),
            json!(1),
            json!(80),
            json!(70_000),
            json!(-1),
            json!(i32::MAX),
            json!(i32::MIN),
        ]),
        Type::Bool => pick(&[json!(true), json!(false)]),
        Type::Time => pick(&[
            json!("2026-01-02T03:04:05Z"),
            json!("1970-01-01T00:00:00Z"),
            json!("1969-12-31T23:59:59Z"),
        ]),
        Type::Map => {
            let keys = [
                "service.kubernetes.io/service-proxy-name",
                "service.kubernetes.io/headless",
                "kubernetes.io/service-name",
                "topology.kubernetes.io/zone",
                "endpoints.kubernetes.io/last-change-trigger-time",
                "ferrule.dev/ipvs-scheduler",
                "k8s.io/initial-events-end",
                "ferrule.dev/ipvs-scheduler",
                "ferrule.dev/proxy-protocol",
                "other",
            ];
            let values = ["", "x", "true"];
            let pairs = keys.iter().filter_map(|key| {
                let at = random.within(&(0..6));
                let value = values.get(usize::try_from(at).unwrap())?;
                Some(((*key).to_owned(), json!(value)))
            });
            Value::Object(pairs.collect())
        }
        Type::Message(entries) => random_object(entries, random),
    }
}
