//! What a kernel may say to a batch.

use super::*;
use crate::Family;
use crate::nft::{Chain, Nft};
use crate::recorder::{Answer, Recorder, Script};

fn start() -> (Script, Nft<Recorder>, Batch) {
    let script = Script::default();
    let mut batch = Batch::new(Family::V4, "t");
    for name in ["a", "b", "c"] {
        batch.add_chain(&Chain::new(name));
    }
    (script.clone(), Nft::new(Recorder::new(script)), batch)
}

#[test]
fn a_batch_is_one_datagram_and_makes_one_generation() {
    let (script, mut nft, mut batch) = start();
    batch.expect_generation(0);
    let commit = nft.commit(&batch).unwrap();
    assert_eq!((commit.steps, commit.generation), (3, Some(1)));
    assert_eq!(nft.generation().unwrap().id, 1);
    let requests = script.take_requests();
    assert_eq!(messages(&requests[0]).count(), 5);
}

#[test]
fn an_empty_batch_is_not_sent() {
    let (script, mut nft, _) = start();
    nft.commit(&Batch::new(Family::V4, "t")).unwrap();
    assert!(script.take_requests().is_empty());
}

#[test]
fn a_refusal_names_its_step() {
    let (script, mut nft, batch) = start();
    for (message, errno) in [
        (1, libc::ENOENT),
        (2, libc::EEXIST),
        (3, libc::EBUSY),
        (3, libc::EINTR),
    ] {
        script.answer(Answer::Refuse { message, errno });
        let error = nft.commit(&batch).unwrap_err();
        let BatchError::Refused {
            step, what, source, ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(step, message - 1);
        assert_eq!(what, ["add chain a", "add chain b", "add chain c"][step]);
        assert_eq!(source.raw_os_error(), Some(errno));
    }
    nft.commit(&batch).unwrap();
}

#[test]
fn refusals_of_the_whole_are_told_apart() {
    let (script, mut nft, batch) = start();
    let whole = |errno| Answer::Refuse { message: 0, errno };
    script.answer(whole(libc::ERESTART));
    assert!(matches!(nft.commit(&batch), Err(BatchError::Conflict)));
    script.answer(whole(libc::EPERM));
    assert!(matches!(nft.commit(&batch), Err(BatchError::Denied(_))));
    script.answer(Answer::Unsent(libc::EMSGSIZE));
    let error = nft.commit(&batch).unwrap_err();
    assert!(matches!(error, BatchError::Unsent { bytes, .. } if bytes > 100));
    nft.commit(&batch).unwrap();
}

#[test]
fn lost_answers_leave_doubt() {
    let (script, mut nft, batch) = start();
    for answer in [Answer::Overrun, Answer::Silence] {
        script.answer(answer);
        let result = nft.commit(&batch);
        assert!(matches!(result, Err(BatchError::Lost(_))), "{result:?}");
    }
    nft.commit(&batch).unwrap();
}

#[test]
fn a_refusal_among_lost_answers_is_certain() {
    let mut outcome = Outcome::new(3);
    let lost = io::Error::from_raw_os_error(libc::ENOBUFS);
    assert_eq!(outcome.next(Err(lost)), Next::IfThere);
    let mut writer = crate::wire::Writer::new();
    let start = writer.begin(NLMSG_ERROR, 0, 2);
    writer.raw(&(-libc::ENOENT).to_ne_bytes());
    writer.end(start);
    assert_eq!(outcome.next(Ok(writer.bytes())), Next::IfThere);
    let none = io::ErrorKind::WouldBlock.into();
    assert_eq!(outcome.next(Err(none)), Next::GiveUp);
    let (_, _, batch) = self::start();
    let result = outcome.into_result(&batch);
    assert!(matches!(result, Err(BatchError::Refused { step: 1, .. })));
}
