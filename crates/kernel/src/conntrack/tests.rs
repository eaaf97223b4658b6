//! Flows without a kernel.

use proptest::prelude::*;

use super::*;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::{Writer, messages};

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

/// A conversation with a kernel that understands conditions on answers, or not.
fn start_with(replies: bool) -> (Script, Conntrack<Recorder>) {
    let script = Script::default();
    let mut conntrack = Conntrack::new(Recorder::new(script.clone()));
    if replies {
        script.answer(Answer::Refuse {
            message: 0,
            errno: libc::EINVAL,
        });
    } else {
        script.agree();
    }
    assert_eq!(conntrack.understands_replies().unwrap(), replies);
    assert_eq!(script.take_requests().len(), 1);
    (script, conntrack)
}

fn start() -> (Script, Conntrack<Recorder>) {
    start_with(true)
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
    let read = conntrack.flows(&filter, |_| true).unwrap();
    assert_eq!((read.flows, read.complete), (vec![flow()], true));
    script.answer(Answer::Replay(datagrams));
    let filter = Filter::protocol(Family::V4, 6);
    assert_eq!(conntrack.flows(&filter, |_| true).unwrap().flows, []);
}

#[test]
fn core_112_after_five_interruptions_what_was_read_must_do() {
    let (script, mut conntrack) = start();
    for _ in 0..5 {
        script.answer(Answer::Interrupt(vec![described(&flow())]));
    }
    let read = conntrack
        .flows(&Filter::protocol(Family::V4, 17), |_| true)
        .unwrap();
    assert_eq!((read.flows, read.complete), (vec![flow()], false));
    assert_eq!(script.take_requests().len(), 5);
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
        assert_eq!(conntrack.flows(&filter, |_| true).unwrap().flows, []);
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
    for replies in [false, true] {
        let (script, mut conntrack) = start_with(replies);
        script.answer(Answer::Replay(vec![described(&flow()), end_of_dump()]));
        let read = conntrack.flows(&filter, |_| true).unwrap();
        assert_eq!(read.flows, [], "another endpoint answers");
        let request = script.take_requests().pop().unwrap();
        let message = messages(&request).next().unwrap().unwrap();
        let mut expected = Writer::new();
        expected.raw(&header(Family::V4));
        filter.understood(replies).write(&mut expected);
        assert_eq!(message.body, expected.bytes());
        assert_eq!(filter.understood(replies) == filter, replies);
    }
}

#[test]
fn flows_are_deleted_in_one_datagram_and_those_that_went_meanwhile_do_not_count() {
    let (script, mut conntrack) = start();
    // One of the two went by itself meanwhile.
    script.answer(Answer::Refuse {
        message: 1,
        errno: libc::ENOENT,
    });
    let flows = [flow(), Flow { id: 78, ..flow() }];
    assert_eq!(conntrack.delete(&flows).unwrap(), 1);
    let last = script.take_requests().pop().unwrap();
    assert_eq!(messages(&last).count(), 2);
}

#[test]
fn only_wanted_flows_are_kept() {
    let (script, mut conntrack) = start();
    let mut dump = described(&flow());
    dump.extend(described(&Flow { id: 78, ..flow() }));
    dump.extend(end_of_dump());
    script.answer(Answer::Replay(vec![dump]));
    let filter = Filter::protocol(Family::V4, 17);
    let read = conntrack.flows(&filter, |flow| flow.id == 78).unwrap();
    let ids: Vec<_> = read.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, [78]);
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
