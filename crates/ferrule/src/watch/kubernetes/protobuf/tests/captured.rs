//! Answers of a real API server, in both formats.

use super::*;
use crate::watch::kubernetes::frames;

/// The bytes of a captured file. Lines with `#` are its caption.
fn bytes_of(hex: &str) -> Vec<u8> {
    hex.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// One collection: a list and a streamed list, each in protobuf and in JSON.
struct Captured {
    kind: Kind,
    shape: Shape,
    list: [&'static str; 2],
    watch: [&'static str; 2],
}

macro_rules! captured {
    ($($name:literal, $kind:ident, $shape:ident;)*) => {
        [$(Captured {
            kind: Kind::$kind,
            shape: Shape::$shape,
            list: [
                include_str!(concat!("../testdata/", $name, ".list.hex")),
                include_str!(concat!("../testdata/", $name, ".list.json")),
            ],
            watch: [
                include_str!(concat!("../testdata/", $name, ".watch.hex")),
                include_str!(concat!("../testdata/", $name, ".watch.json")),
            ],
        }),*]
    };
}

fn all() -> [Captured; 5] {
    captured! {
        "services", Service, Own;
        "slices", EndpointSlice, Own;
        "nodes", Node, Own;
        "cidrs", ServiceCidr, Own;
        "endpoints", EndpointSlice, Endpoints;
    }
}

impl Captured {
    fn intake(&self) -> Intake {
        let mut intake = Intake::new(self.kind, "a");
        intake.begin_list(self.shape);
        intake
    }
}

#[test]
fn lists_of_a_real_api_server_are_the_same_in_both_formats() {
    for captured in all() {
        let [protobuf, json] = captured.list;
        let (found, metadata) = items(&bytes_of(protobuf), 100);
        let mut from_protobuf = captured.intake();
        for item in found {
            from_protobuf.item(Format::Protobuf, &item).unwrap();
        }
        let mut from_json = captured.intake();
        let mut lists = frames::Items::default();
        let feed = |item: &[u8]| from_json.item(Format::Json, item);
        lists.feed(json.as_bytes(), feed).unwrap();
        let events = from_json.take();
        assert!(events.len() > 1, "more than its beginning: {events:?}");
        assert_eq!(format!("{:?}", from_protobuf.take()), format!("{events:?}"));
        let version = |format, list: &[u8]| {
            let metadata = ListMetadata::read(format, list).unwrap();
            assert_eq!(metadata.next, "");
            metadata.resource_version.parse::<u64>().unwrap()
        };
        version(Format::Protobuf, &metadata.unwrap());
        version(Format::Json, &lists.finish().unwrap());
    }
}

#[test]
fn watches_of_a_real_api_server_are_the_same_in_both_formats() {
    for captured in all() {
        let [protobuf, json] = captured.watch;
        let mut frames = Frames::default();
        frames.feed(&bytes_of(protobuf));
        let (mut from_protobuf, mut from_json) = (captured.intake(), captured.intake());
        for line in json.lines() {
            let frame = frames.pop().unwrap().unwrap();
            let found = from_protobuf.event(Format::Protobuf, &frame).unwrap();
            let expected = from_json.event(Format::Json, line.as_bytes()).unwrap();
            match (found, expected) {
                // How far the history had come at the end of each stream.
                (Progress::ListEnds(_), Progress::ListEnds(_)) => {}
                (found, expected) => assert_eq!(found, expected),
            }
        }
        assert!(!frames.is_inside());
        let events = from_json.take();
        assert_eq!(format!("{:?}", from_protobuf.take()), format!("{events:?}"));
    }
}
