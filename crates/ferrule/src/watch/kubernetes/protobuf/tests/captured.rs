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

/// Some bytes changed, cut out, put in or repeated: what a fuzzer does first.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.within(&(0..6)) {
        let mut place = || usize::try_from(random.within(&(0..bytes.len() as u64 + 1))).unwrap();
        let (at, other) = (place(), place());
        let (from, to) = (at.min(other), at.max(other).min(at.min(other) + 40));
        let byte = random.number().to_le_bytes()[0];
        match random.within(&(0..6)) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(from..to)),
            2 => bytes.insert(at, byte),
            3 => {
                let again = bytes[from..to].to_vec();
                bytes.splice(at..at, again);
            }
            // Lengths that are almost right, or as large as they can be.
            4 => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|old| *old = old.wrapping_add(1)),
            _ => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|old| *old = byte | 0x80),
        }
    }
}

#[test]
fn mutated_answers_of_a_real_api_server_are_errors_or_values() {
    let (mut errors, mut values) = (0, 0);
    let mut count = |is_ok: bool| *(if is_ok { &mut values } else { &mut errors }) += 1;
    for seed in 1..=600 {
        let mut random = Random::seeded(seed);
        for captured in all() {
            let mut list = bytes_of(captured.list[0]);
            mutate(&mut list, &mut random);
            let size = usize::try_from(random.within(&(1..200))).unwrap();
            let (found, metadata) = items(&list, size);
            let length: usize = found.iter().map(Vec::len).sum();
            assert!(length <= list.len(), "seed {seed}");
            let mut intake = captured.intake();
            for item in found {
                count(intake.item(Format::Protobuf, &item).is_ok());
            }
            _ = metadata.map(|metadata| ListMetadata::read(Format::Protobuf, &metadata));

            let mut watch = bytes_of(captured.watch[0]);
            mutate(&mut watch, &mut random);
            let mut frames = Frames::default();
            let mut intake = captured.intake();
            for piece in watch.chunks(size) {
                frames.feed(piece);
                while let Ok(Some(frame)) = frames.pop() {
                    count(intake.event(Format::Protobuf, &frame).is_ok());
                }
            }
        }
    }
    assert!(errors > 500 && values > 500, "{errors} {values}");
}
