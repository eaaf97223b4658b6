//! Protobuf and JSON say the same, and damaged bytes harm nobody.

use std::fmt::Debug;

use ferrule_core::track::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::testing::{self, bytes, numeral};
use super::*;
use crate::watch::api;
use crate::watch::kubernetes::endpoints::Endpoints;
use crate::watch::kubernetes::failure::{Failure, Refusal};
use crate::watch::kubernetes::format::Format;
use crate::watch::kubernetes::intake::{Intake, ListMetadata, Progress, Shape};
use crate::watch::kubernetes::pace::Random;
use ferrule_core::issue::Kind;

mod captured;

const KINDS: [(Kind, &str); 4] = [
    (Kind::Service, "Service"),
    (Kind::EndpointSlice, "EndpointSlice"),
    (Kind::Node, "Node"),
    (Kind::ServiceCidr, "ServiceCIDR"),
];

fn read<T: Message>(kind: Kind, word: &str, object: &Value) -> T {
    T::read(kind, &testing::object(word, object)).unwrap()
}

/// Every field that we use, as both formats have it.
fn same<T: Message + DeserializeOwned + Debug>(kind: Kind, word: &str, object: &Value) {
    let json: T = serde_json::from_value(object.clone()).unwrap();
    let protobuf: T = read(kind, word, object);
    assert_eq!(format!("{protobuf:?}"), format!("{json:?}"), "{object}");
}

#[test]
fn objects_are_equal_whether_they_come_in_json_or_protobuf() {
    for seed in 1..=300 {
        let mut random = Random::seeded(seed);
        for (kind, word) in KINDS {
            let object = testing::random(word, &mut random);
            same::<api::Object>(kind, word, &object);
        }
        let object = testing::random("Endpoints", &mut random);
        same::<Endpoints>(Kind::EndpointSlice, "Endpoints", &object);
        let status = testing::random("Status", &mut random);
        let json: Refusal = serde_json::from_value(status.clone()).unwrap();
        let protobuf = refusal(&testing::object("Status", &status)).unwrap();
        assert_eq!(format!("{protobuf:?}"), format!("{json:?}"), "{status}");
    }
}

#[test]
fn fields_that_we_do_not_use_are_passed_over() {
    let service = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "10.0.0.1"}});
    let plain = testing::object("Service", &service);
    let unknown = [
        numeral(1000, u64::MAX),
        bytes(1001, b"\xff\xff"),
        // Eight bytes, and four.
        vec![0x99, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0x9d, 0x3f, 1, 2, 3, 4],
    ];
    let with = [unknown.concat(), plain.clone(), unknown.concat()].concat();
    let object = |bytes: &[u8]| format!("{:?}", api::Object::read(Kind::Service, bytes).unwrap());
    assert_eq!(object(&with), object(&plain));
}

#[test]
fn a_known_field_of_another_type_is_damage() {
    let read = |message: &[u8]| api::Object::read(Kind::Service, message).unwrap_err();
    assert_eq!(read(&numeral(1, 7)), Damage::Type(1));
    assert_eq!(read(&bytes(2, &numeral(3, 7))), Damage::Type(3));
    assert_eq!(read(&[0x0b]), Damage::WireType(3), "groups");
    assert_eq!(read(&[0x0a, 0x05, 1]), Damage::Short);
    assert_eq!(read(&[0xff; 11]), Damage::Number);
}

#[test]
fn a_list_within_an_object_has_a_limit() {
    let one = bytes(2, b"");
    let read = |count| {
        let message = one.repeat(count);
        let object = api::Object::read(Kind::EndpointSlice, &message);
        object.map(|object| object.endpoints.len())
    };
    assert_eq!(read(MOST_ENTRIES), Ok(MOST_ENTRIES));
    assert_eq!(read(MOST_ENTRIES + 1), Err(Damage::Entries(2)));
}

/// The message, cut off at every place and with every bit turned.
fn damaged(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let cut = (0..message.len()).map(|end| message[..end].to_vec());
    let turned = (0..message.len() * 8).map(|bit| {
        let mut message = message.to_vec();
        message[bit / 8] ^= 1 << (bit % 8);
        message
    });
    cut.chain(turned)
}

#[test]
fn every_damage_gives_an_error_or_a_value() {
    let (mut errors, mut values) = (0, 0);
    let mut count = |is_ok: bool| *(if is_ok { &mut values } else { &mut errors }) += 1;
    for seed in 1..=3 {
        let mut random = Random::seeded(seed);
        for (kind, word) in KINDS {
            let message = testing::object(word, &testing::random(word, &mut random));
            for message in damaged(&message) {
                count(api::Object::read(kind, &message).is_ok());
                count(metadata(&message).is_ok());
                _ = names(&message);
            }
        }
        let message = testing::object("Endpoints", &testing::random("Endpoints", &mut random));
        for message in damaged(&message) {
            count(Endpoints::read(Kind::EndpointSlice, &message).is_ok());
        }
        let message = testing::message("Status", &testing::random("Status", &mut random));
        for message in damaged(&message) {
            count(open(&message).and_then(refusal).is_ok());
            _ = Refusal::read(500, None, &message);
        }
    }
    assert!(errors > 1000 && values > 1000, "{errors} {values}");
}

#[test]
fn noise_is_never_more_than_an_error() {
    let mut random = Random::seeded(7);
    for _ in 0..20_000 {
        let length = random.within(&(0..64));
        let noise: Vec<u8> = (0..length)
            .map(|_| random.number().to_le_bytes()[0])
            .collect();
        for (kind, _) in KINDS {
            _ = api::Object::read(kind, &noise);
        }
        _ = Endpoints::read(Kind::EndpointSlice, &noise);
        _ = (refusal(&noise), list_metadata(&noise), open(&noise));
        _ = WatchEvent::read(&noise);
    }
}

fn service(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name, "resourceVersion": "41"},
        "spec": {"clusterIP": "172.30.0.1", "ports": [{"port": 80}]},
    })
}

/// A list in pieces of this size: its objects, and its metadata if it is complete.
fn items(list: &[u8], size: usize) -> (Vec<Vec<u8>>, Result<Vec<u8>, Failure>) {
    let mut items = Items::default();
    let mut found = Vec::new();
    for piece in list.chunks(size) {
        let fed = items.feed(piece, |item| {
            found.push(item.to_vec());
            Ok(())
        });
        if let Err(failure) = fed {
            return (found, Err(failure));
        }
    }
    (found, items.finish())
}

fn list() -> (Vec<u8>, Vec<Vec<u8>>) {
    let names = ["a", "b", &"c".repeat(300)];
    let services: Vec<Value> = names.into_iter().map(service).collect();
    let objects = services.iter().map(|one| testing::object("Service", one));
    let objects = objects.collect();
    let list = json!({"metadata": {"resourceVersion": "7", "continue": "x"}, "items": services});
    (testing::list("Service", &list), objects)
}

#[test]
fn objects_of_a_list_come_one_by_one_whatever_the_pieces() {
    let (list, objects) = list();
    for size in 1..=list.len() {
        let (found, metadata) = items(&list, size);
        assert_eq!(found, objects, "in pieces of {size}");
        let metadata = ListMetadata::read(Format::Protobuf, &metadata.unwrap()).unwrap();
        assert_eq!((&*metadata.resource_version, &*metadata.next), ("7", "x"));
    }
}

#[test]
fn a_list_that_breaks_off_is_noticed() {
    let (list, objects) = list();
    for end in 0..list.len() {
        let (found, metadata) = items(&list[..end], 50);
        // Nothing follows the objects but two empty fields.
        assert_eq!(
            metadata.is_ok(),
            found == objects && end >= list.len() - 4 && end % 2 == list.len() % 2,
            "{end}"
        );
    }
}

#[test]
fn damaged_lists_and_frames_are_errors_or_values() {
    let (list, _) = list();
    for list in damaged(&list) {
        let (found, metadata) = items(&list, 64);
        _ = metadata.map(|metadata| ListMetadata::read(Format::Protobuf, &metadata));
        let mut intake = Intake::new(Kind::Service, "here");
        for item in found {
            _ = intake.item(Format::Protobuf, &item);
        }
    }
    let frame = testing::frame("Service", &json!({"type": "ADDED", "object": service("a")}));
    for frame in damaged(&frame) {
        let mut frames = Frames::default();
        frames.feed(&frame);
        if let Ok(Some(event)) = frames.pop() {
            _ = Intake::new(Kind::Service, "here").event(Format::Protobuf, &event);
        }
    }
}

#[test]
fn no_length_is_believed_before_it_is_there() {
    let garbled = |bytes: &[u8]| matches!(items(bytes, 7).1, Err(Failure::Garbled { .. }));
    // An object longer than its list, one longer than any, and two lists.
    assert!(garbled(b"k8s\0\x12\x03\x12\x05abcde"));
    assert!(garbled(
        b"k8s\0\x12\xff\xff\xff\xff\x7f\x12\xff\xff\xff\x7f"
    ));
    assert!(garbled(b"k8s\0\x12\x00\x12\x00"));
    assert!(garbled(b"{\"kind\":\"List\"}"));
    let mut frames = Frames::default();
    frames.feed(&[0x7f, 0xff, 0xff, 0xff, 0]);
    assert!(matches!(frames.pop(), Err(Failure::Garbled { .. })));
}

#[test]
fn frames_come_whole_whatever_the_pieces() {
    let event = |name| {
        testing::frame(
            "Service",
            &json!({"type": "ADDED", "object": service(name)}),
        )
    };
    let empty = vec![0; 4];
    let stream = [event("a"), empty, event("b"), event("c")[..9].to_vec()].concat();
    for size in 1..=stream.len() {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for piece in stream.chunks(size) {
            frames.feed(piece);
            while let Some(frame) = frames.pop().unwrap() {
                found.push(frame.to_vec());
            }
        }
        assert_eq!(
            found,
            [&event("a")[4..], &event("b")[4..]],
            "in pieces of {size}"
        );
        assert!(frames.is_inside());
    }
}

/// Takes in events as they are in JSON, through protobuf.
fn events(intake: &mut Intake, kind: &str, events: &[Value]) -> Vec<Result<Progress, Failure>> {
    let frame = |event| testing::frame(kind, event)[4..].to_vec();
    let frames = events.iter().map(frame);
    frames
        .map(|frame| intake.event(Format::Protobuf, &frame))
        .collect()
}

#[test]
fn events_of_a_watch_become_events_and_a_version() {
    let mut intake = Intake::new(Kind::Service, "here");
    let of = |kind: &str| json!({"type": kind, "object": service("a")});
    let mut end = of("BOOKMARK");
    end["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    let all = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"].map(of);
    let all = [&all[..], &[end]].concat();
    let progress: Vec<_> = events(&mut intake, "Service", &all)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let version = "41".to_owned();
    assert_eq!(
        progress,
        [
            Progress::Version(version.clone()),
            Progress::Version(version.clone()),
            Progress::Version(version.clone()),
            Progress::Bookmark(version.clone()),
            Progress::ListEnds(version),
        ]
    );
    let taken = intake.take();
    assert!(matches!(
        taken[..],
        [Event::Put { .. }, Event::Put { .. }, Event::Gone { .. }]
    ));
}

#[test]
fn an_error_inside_a_watch_is_a_refusal() {
    let status = json!({"code": 410, "reason": "Expired", "message": "too old resource version"});
    let event = json!({"type": "ERROR", "object": status});
    let mut intake = Intake::new(Kind::Service, "here");
    let failure = events(&mut intake, "Service", &[event])
        .remove(0)
        .unwrap_err();
    assert!(failure.is_expired());
    assert!(matches!(failure, Failure::Refused { inside: true, .. }));
}

#[test]
fn an_object_that_makes_no_sense_is_kept_as_it_was_until_it_is_deleted() {
    let metadata = json!({"namespace": "default", "name": "b", "resourceVersion": "7"});
    for shape in [Shape::Own, Shape::Endpoints] {
        let word = match shape {
            Shape::Own => "EndpointSlice",
            Shape::Endpoints => "Endpoints",
        };
        let object = json!({"metadata": metadata, "endpoints": "?", "subsets": "?"});
        let event = |kind| json!({"type": kind, "object": object});
        let mut intake = Intake::new(Kind::EndpointSlice, "here");
        intake.begin_list(shape);
        for progress in events(&mut intake, word, &[event("MODIFIED"), event("DELETED")]) {
            assert_eq!(progress.unwrap(), Progress::Version("7".to_owned()));
        }
        let taken = intake.take();
        let [
            Event::Listing(_),
            Event::Undecodable { issues, .. },
            Event::Gone { .. },
        ] = &taken[..]
        else {
            panic!("{taken:?}");
        };
        assert!(issues[0].message.contains("wire type"), "{issues:?}");
    }
}

#[test]
fn what_is_no_event_at_all_is_an_error() {
    let event = |kind: &str, object: &Value| {
        testing::frame("Service", &json!({"type": kind, "object": object}))[4..].to_vec()
    };
    for frame in [
        b"<html>".to_vec(),
        event("PAUSED", &service("a")),
        event("ADDED", &json!({"spec": {"clusterIP": "10.0.0.1"}})),
        event("", &service("a")),
    ] {
        let mut intake = Intake::new(Kind::Service, "here");
        let failure = intake.event(Format::Protobuf, &frame).unwrap_err();
        assert!(matches!(failure, Failure::Garbled { .. }), "{frame:?}");
    }
    assert!(
        ListMetadata::read(Format::Protobuf, b"").is_err(),
        "no version"
    );
}
