//! Flows without a kernel.

use proptest::prelude::*;

use super::*;
use crate::recorder::{Answer, Recorder, Script};

fn flow() -> Flow {
    let original = Tuple {
        source: "10.0.0.1:1000".parse().unwrap(),
        destination: "10.96.0.10:53".parse().unwrap(),
        protocol: 17,
    };
    let reply = Tuple {
        source: "10.1.0.2:5353".parse().unwrap(),
        ..original.reversed()
    };
    Flow {
        zone: 3,
        id: 77,
        ..Flow::new(original, reply)
    }
}

/// A message about a flow, as in a dump.
fn described(flow: &Flow) -> Vec<u8> {
    let mut writer = Writer::new();
    let start = writer.begin(NEW, 0, 0);
    writer.raw(&header(flow.original.family()));
    flow.write_new(&mut writer);
    writer.u32_be(12, flow.id);
    writer.end(start);
    writer.bytes().to_vec()
}

/// A conversation with a kernel that can do this.
fn start_with(abilities: Abilities) -> (Script, Conntrack<Recorder>) {
    let script = Script::default();
    let refuse = |errno| Answer::Refuse { message: 0, errno };
    let (mut conntrack, asked) = (Conntrack::new(Recorder::new(script.clone())), &script);
    if abilities.replies {
        asked.answer(refuse(libc::EINVAL));
    } else {
        asked.agree();
    }
    if !abilities.delete {
        asked.answer(refuse(libc::ENOENT));
    }
    assert_eq!(conntrack.abilities().unwrap(), abilities);
    assert_eq!(script.take_requests().len(), 2);
    (script, conntrack)
}

fn start() -> (Script, Conntrack<Recorder>) {
    start_with(Abilities {
        replies: true,
        delete: true,
    })
}

fn end_of_dump() -> Vec<u8> {
    let mut done = Writer::new();
    let at = done.begin(crate::wire::NLMSG_DONE, 0, 0);
    done.raw(&[0; 4]);
    done.end(at);
    done.bytes().to_vec()
}

#[test]
fn a_flow_is_read_as_written() {
    let bytes = described(&flow());
    let message = messages(&bytes).next().unwrap().unwrap();
    assert_eq!(read_flow(&message), Ok(Some(flow())));
}

#[test]
fn a_captured_flow_is_understood() {
    let bytes = crate::wire::tests::bytes(include_str!("../../testdata/flow.hex"));
    let message = messages(&bytes).next().unwrap().unwrap();
    let read = read_flow(&message).unwrap().unwrap();
    assert_eq!((read.original, read.reply), (flow().original, flow().reply));
    assert_eq!(read.zone, 3);
    assert_ne!(read.id, 0);
    // Entered by hand, it counts as seen, but not as translated.
    assert_eq!(read.status & Flow::DESTINATION_TRANSLATED, 0);
}

#[test]
fn flows_that_were_not_asked_for_are_left_out() {
    let (script, mut conntrack) = start();
    let datagrams = vec![described(&flow()), end_of_dump()];
    script.answer(Answer::Replay(datagrams.clone()));
    let filter = Filter::protocol(Family::V4, 17);
    let read = conntrack.flows(&filter).unwrap();
    assert_eq!((read.flows, read.complete), (vec![flow()], true));
    script.answer(Answer::Replay(datagrams));
    let filter = Filter::protocol(Family::V4, 6);
    assert_eq!(conntrack.flows(&filter).unwrap().flows, []);
}

#[test]
fn core_112_after_five_interruptions_what_was_read_must_do() {
    let (script, mut conntrack) = start();
    for _ in 0..5 {
        script.answer(Answer::Interrupt(vec![described(&flow())]));
    }
    let read = conntrack.flows(&Filter::protocol(Family::V4, 17)).unwrap();
    assert_eq!((read.flows, read.complete), (vec![flow()], false));
    assert_eq!(script.take_requests().len(), 5);
}

#[test]
fn a_kernel_that_can_deletes_by_filter() {
    let (script, mut conntrack) = start();
    let filter = Filter::protocol(Family::V4, 17);
    assert_eq!(conntrack.delete_matching(&filter).unwrap(), None);
    assert_eq!(conntrack.delete_matching(&filter).unwrap(), None);
    assert_eq!(script.take_requests().len(), 2);
}

#[test]
fn what_the_kernel_does_not_understand_is_not_left_to_it() {
    let (script, mut conntrack) = start();
    let source = Some("fd00::1".parse().unwrap());
    let by_address = Filter {
        original: Match {
            source,
            ..Match::default()
        },
        ..Filter::protocol(Family::V6, 17)
    };
    let by_port = Filter {
        original: Match {
            source_port: Some(1),
            ..Match::default()
        },
        ..Filter::protocol(Family::V4, 132)
    };
    for filter in [by_address, by_port] {
        // A dump, and nothing to delete after it.
        assert_eq!(conntrack.delete_matching(&filter).unwrap(), Some(0));
        let [request] = &script.take_requests()[..] else {
            panic!("one request")
        };
        let message = messages(request).next().unwrap().unwrap();
        assert_eq!(message.kind, GET);
        // Only the protocol is asked for.
        let mut expected = Writer::new();
        expected.raw(&header(filter.family));
        Filter {
            original: Match::default(),
            ..filter
        }
        .write(&mut expected);
        assert_eq!(message.body, expected.bytes());
    }
}

#[test]
fn conditions_on_answers_are_left_only_to_a_kernel_that_understands_them() {
    let filter = Filter {
        reply: Match {
            source: Some("10.1.0.3".parse().unwrap()),
            ..Match::default()
        },
        ..Filter::protocol(Family::V4, 17)
    };
    let (script, mut conntrack) = start_with(Abilities {
        replies: false,
        delete: true,
    });
    script.answer(Answer::Replay(vec![described(&flow()), end_of_dump()]));
    assert_eq!(conntrack.delete_matching(&filter).unwrap(), Some(0));
    let (_, mut conntrack) = start();
    assert_eq!(conntrack.delete_matching(&filter).unwrap(), None);
}

#[test]
fn for_a_kernel_that_does_not_flows_are_deleted_one_by_one() {
    let (script, mut conntrack) = start_with(Abilities {
        replies: true,
        delete: false,
    });
    let mut dump = described(&flow());
    dump.extend(described(&Flow { id: 78, ..flow() }));
    dump.extend(end_of_dump());
    script.answer(Answer::Replay(vec![dump]));
    // One of the two went by itself meanwhile.
    script.answer(Answer::Refuse {
        message: 1,
        errno: libc::ENOENT,
    });
    let filter = Filter::protocol(Family::V4, 17);
    assert_eq!(conntrack.delete_matching(&filter).unwrap(), Some(1));
    let last = script.take_requests().pop().unwrap();
    assert_eq!(messages(&last).count(), 2);
}

#[test]
fn a_filter_without_conditions_deletes_nothing() {
    let (script, mut conntrack) = start();
    let result = conntrack.delete_matching(&Filter::all(Family::V6));
    assert!(matches!(result, Err(RequestError::Malformed(_))));
    assert!(script.take_requests().is_empty());
}

#[test]
fn losing_answers_is_an_error() {
    let (script, mut conntrack) = start();
    script.answer(Answer::Overrun);
    assert!(matches!(
        conntrack.delete(&[flow()]),
        Err(RequestError::Lost(_))
    ));
    script.answer(Answer::Refuse {
        message: 0,
        errno: libc::EPERM,
    });
    assert!(matches!(
        conntrack.delete(&[flow()]),
        Err(RequestError::Refused { .. })
    ));
    assert_eq!(conntrack.delete(&[flow()]).unwrap(), 1);
}

proptest! {
    #[test]
    fn no_damage_makes_reading_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = described(&flow());
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for message in messages(&bytes).flatten() {
            let _ = read_flow(&message);
        }
    }
}
