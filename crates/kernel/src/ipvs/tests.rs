//! Requests and answers without a kernel.

use super::*;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::{NLM_F_MULTI, NLMSG_DONE, Writer};

/// Families as the kernel lists them.
fn families(names: &[(&str, u16)]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (name, number) in names {
        let start = writer.begin(CONTROL, NLM_F_MULTI, 0);
        writer.raw(&[1, 2, 0, 0]);
        writer.text(FAMILY_NAME, name);
        writer.attr(FAMILY_NUMBER, &number.to_ne_bytes());
        writer.u32_ne(3, 1);
        writer.end(start);
    }
    let start = writer.begin(NLMSG_DONE, NLM_F_MULTI, 0);
    writer.raw(&[0; 4]);
    writer.end(start);
    writer.bytes().to_vec()
}

#[test]
fn all_is_forgotten_by_the_number_that_the_name_has() {
    let script = Script::default();
    let listed = families(&[("nlctrl", 16), ("IPVS", 28), ("ethtool", 29)]);
    script.answer(Answer::Replay(vec![listed]));
    let ipvs = Ipvs::over(Recorder::new(script.clone())).unwrap();
    ipvs.unwrap().flush().unwrap();
    let requests = script.take_requests();
    assert_eq!(requests.len(), 2);
    // Length, number, flags (request, acknowledge), sequence, port; command and version.
    assert_eq!(requests[1][..8], [20, 0, 0, 0, 28, 0, 5, 0]);
    assert_eq!(requests[1][16..], [17, 1, 0, 0]);
}

#[test]
fn a_kernel_without_it_has_nothing_to_forget() {
    let script = Script::default();
    script.answer(Answer::Replay(vec![families(&[("nlctrl", 16)])]));
    assert!(Ipvs::over(Recorder::new(script)).unwrap().is_none());
}
