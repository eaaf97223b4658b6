//! Requests and answers without a kernel.

use super::*;
use crate::recorder::{Answer, Recorder, Script};

fn answered(errno: i32) -> Result<bool, RequestError> {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    script.answer(Answer::Refuse { message: 0, errno });
    sets.destroy("KUBE-CLUSTER-IP")
}

#[test]
fn a_set_is_destroyed_by_name() {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    assert!(sets.destroy("KUBE-IPVS-IPS").unwrap());
    let requests = script.take_requests();
    let body = [
        &[2, 0, 0, 0][..],
        &[5, 0, 1, 0, 6, 0, 0, 0],
        &[18, 0, 2, 0],
        b"KUBE-IPVS-IPS\0",
        &[0, 0],
    ];
    // The kind, and flags: request, acknowledge, strictly.
    assert_eq!(requests[0][4..8], [3, 6, 5, 2]);
    assert_eq!(requests[0][16..], body.concat());
}

#[test]
fn what_is_not_there_needs_no_destroying() {
    assert!(!answered(libc::ENOENT).unwrap());
    assert!(!answered(libc::EINVAL).unwrap());
}

#[test]
fn a_set_that_a_rule_names_is_busy() {
    let Err(RequestError::Refused { source, .. }) = answered(BUSY) else {
        panic!("it is refused");
    };
    assert_eq!(source.kind(), io::ErrorKind::ResourceBusy);
}
