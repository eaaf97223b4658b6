//! Conversations with a kernel that follows a script.

use std::io::ErrorKind;

use super::*;
use crate::recorder::{Answer, Recorder, Script};

fn start() -> (Script, Exchange<Recorder>) {
    let script = Script::default();
    (script.clone(), Exchange::new(Recorder::new(script)))
}

/// A datagram of messages that each hold one byte.
fn datagram(parts: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    for part in parts {
        let start = writer.begin(0x100, 0, 0);
        writer.raw(&[*part, 0, 0, 0]);
        writer.end(start);
    }
    writer.bytes().to_vec()
}

fn done(errno: i32) -> Vec<u8> {
    let mut writer = Writer::new();
    let start = writer.begin(NLMSG_DONE, 0, 0);
    writer.raw(&(-errno).to_ne_bytes());
    writer.end(start);
    writer.bytes().to_vec()
}

fn dump(exchange: &mut Exchange<Recorder>) -> Result<Vec<u8>, RequestError> {
    exchange.dump_all(
        1,
        |_| {},
        |message, all| {
            all.push(message.body[0]);
            Ok(())
        },
    )
}

#[test]
fn a_dump_is_read_to_its_end() {
    let (script, mut exchange) = start();
    script.answer(Answer::Replay(vec![
        datagram(&[1, 2]),
        datagram(&[3]),
        done(0),
    ]));
    assert_eq!(dump(&mut exchange).unwrap(), [1, 2, 3]);
}

#[test]
fn an_interrupted_dump_is_begun_again() {
    let (script, mut exchange) = start();
    script.answer(Answer::Interrupt(vec![datagram(&[1])]));
    script.answer(Answer::Replay(vec![datagram(&[2]), done(libc::EINTR)]));
    script.answer(Answer::Replay(vec![datagram(&[3]), done(0)]));
    assert_eq!(dump(&mut exchange).unwrap(), [3]);
    assert_eq!(script.take_requests().len(), 3);
}

#[test]
fn a_dump_that_is_always_interrupted_is_given_up() {
    let (script, mut exchange) = start();
    for _ in 0..10 {
        script.answer(Answer::Interrupt(vec![]));
    }
    assert!(matches!(
        dump(&mut exchange),
        Err(RequestError::Interrupted)
    ));
    assert_eq!(script.take_requests().len(), ATTEMPTS);
}

#[test]
fn an_interrupted_dump_that_reads_the_same_twice_is_taken_where_that_is_enough() {
    let (script, mut exchange) = start();
    let mut settled = || {
        exchange.dump_settled(
            1,
            |_| {},
            |message, all: &mut Vec<u8>| {
                all.extend(message.body.first());
                Ok(())
            },
        )
    };
    for kind in [1, 2, 2] {
        script.answer(Answer::Interrupt(vec![datagram(&[kind])]));
    }
    assert_eq!(settled().unwrap(), [2]);
    assert_eq!(script.take_requests().len(), 3);
    // Nothing is not enough, however often.
    for _ in 0..10 {
        script.answer(Answer::Interrupt(vec![]));
    }
    assert!(matches!(settled(), Err(RequestError::Interrupted)));
}

#[test]
fn a_refusal_says_why() {
    let (script, mut exchange) = start();
    let refuse = |errno| Answer::Refuse { message: 0, errno };
    script.answer(refuse(libc::ENOENT));
    assert!(dump(&mut exchange).unwrap_err().is_not_found());
    script.answer(refuse(libc::EEXIST));
    let error = exchange.acknowledged(1, 0, |_| {}).unwrap_err();
    let RequestError::Refused { source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(source.kind(), ErrorKind::AlreadyExists);
    exchange.acknowledged(1, 0, |_| {}).unwrap();
}

#[test]
fn lost_and_missing_answers_are_noticed() {
    let (script, mut exchange) = start();
    for answer in [
        Answer::Overrun,
        Answer::Silence,
        Answer::Unsent(libc::ENOBUFS),
    ] {
        script.answer(answer);
        let result = exchange.acknowledged(1, 0, |_| {});
        assert!(matches!(result, Err(RequestError::Lost(_))), "{result:?}");
    }
    exchange.acknowledged(1, 0, |_| {}).unwrap();
}

#[test]
fn answers_to_abandoned_requests_are_skipped() {
    let (script, mut exchange) = start();
    script.answer(Answer::Replay(vec![datagram(&[1])]));
    // The end of the dump never came.
    assert!(matches!(dump(&mut exchange), Err(RequestError::Lost(_))));
    script.answer(Answer::Replay(vec![datagram(&[7]), done(0)]));
    assert_eq!(dump(&mut exchange).unwrap(), [7]);
}

#[test]
fn bytes_that_are_no_message_are_an_error() {
    let (script, mut exchange) = start();
    script.answer(Answer::Replay(vec![vec![1, 2, 3]]));
    assert!(matches!(
        dump(&mut exchange),
        Err(RequestError::Malformed(_))
    ));
}

#[test]
fn an_error_is_read_with_and_without_the_request() {
    let explained = |capped: bool| {
        let mut writer = Writer::new();
        let flags = NLM_F_ACK_TLVS | if capped { NLM_F_CAPPED } else { 0 };
        let start = writer.begin(NLMSG_ERROR, flags, 0);
        writer.raw(&(-libc::EINVAL).to_ne_bytes());
        let request = writer.begin(7, 0, 0);
        writer.u32_be(1, 2);
        writer.end(request);
        if capped {
            // The header still tells the full length, but the body is missing.
            let _ = writer.split_off(start + 16 + 4 + 16);
        }
        writer.text(ERROR_MESSAGE, "no");
        writer.u32_ne(ERROR_OFFSET, 20);
        writer.end(start);
        let bytes = writer.bytes().to_vec();
        let message = messages(&bytes).next().unwrap().unwrap();
        Verdict::read(&message).unwrap()
    };
    let expected = Verdict {
        errno: libc::EINVAL,
        message: Some("no".to_owned()),
        offset: Some(20),
    };
    assert_eq!(explained(true), expected);
    assert_eq!(explained(false), expected);
}
