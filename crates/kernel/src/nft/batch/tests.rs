//! Batches as bytes.

use super::locate::list;
use super::*;
use crate::nft::{Field, Value, Verdict};
use crate::wire::messages;

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = Element> {
    range.map(|n| Element::verdict(Value::new().number(n), Verdict::Goto("x".repeat(60).into())))
}

fn body(batch: &Batch) -> Vec<(u16, u16, u32, Vec<u8>)> {
    let (_, body, _) = batch.parts();
    messages(body)
        .map(|message| {
            let message = message.unwrap();
            let body = message.body.to_vec();
            (message.kind, message.flags, message.sequence, body)
        })
        .collect()
}

#[test]
fn only_the_last_message_wants_an_acknowledgement() {
    let mut batch = Batch::new(Family::V4, "t");
    batch.add_table(&Table::new("t"));
    batch.add_chain(&Chain::new("a"));
    batch.add_elements("s", numbers(0..2000));
    let flags: Vec<_> = body(&batch).iter().map(|m| m.1 & NLM_F_ACK != 0).collect();
    let (last, others) = flags.split_last().unwrap();
    assert!(*last && !others.contains(&true), "{flags:?}");
}

#[test]
fn long_lists_are_split_and_stay_in_order() {
    let mut batch = Batch::new(Family::V4, "t");
    assert_eq!(batch.add_elements("s", numbers(0..5000)), 0);
    assert_eq!(batch.add_elements("s", numbers(5000..5001)), 1);
    let messages = body(&batch);
    assert!(messages.len() > 5, "{}", messages.len());
    assert_eq!(batch.too_long(), None);
    let mut found = 0;
    let count = u32::try_from(messages.len()).unwrap();
    for (index, (_, _, sequence, body)) in (1..).zip(&messages) {
        assert_eq!(*sequence, index);
        let (_, lengths) = list(body, elem::LIST_ELEMENTS).unwrap();
        let last = index == count;
        assert_eq!(batch.locate(index, None).0, usize::from(last));
        // The first of this message, where it lies behind the names of table and set.
        let at = 16 + 4 + 8 + 8 + 4;
        let element = batch.locate(index, Some(at)).1;
        assert_eq!(element, Some(if last { 0 } else { found }));
        found += lengths.len();
    }
    assert_eq!(found, 5001);
}

#[test]
fn no_elements_are_no_message() {
    let mut batch = Batch::new(Family::V4, "t");
    // A list without elements would empty the set.
    batch.delete_elements("s", Vec::<Element>::new());
    assert!(batch.is_empty());
    assert_eq!(batch.len(), 1);
    assert_eq!(batch.describe(0), "nothing");
}

#[test]
fn a_step_that_does_not_fit_is_named() {
    let mut batch = Batch::new(Family::V4, "t");
    batch.add_chain(&Chain::new("fits"));
    let load = crate::nft::Expr::Load {
        value: Value::new().field(&[0; 64]),
        into: crate::nft::Reg::FIRST,
    };
    batch.add_rule(&Rule::new("fits", vec![load; 1000]));
    batch.add_chain(&Chain::new("fits too"));
    assert_eq!(batch.too_long(), Some(1));
}

#[test]
fn steps_are_described() {
    let mut batch = Batch::new(Family::V6, "t");
    batch.add_table(&Table::new("t"));
    batch.add_chain(&Chain::new("c"));
    batch.flush_chain("c");
    batch.add_rule(&Rule::new("c", vec![]));
    batch.delete_rule("c", 7);
    batch.add_set(&Set::new("s", [Field::Port]));
    batch.add_elements("s", [Element::new(Value::new().port(1))]);
    batch.delete_elements("s", [Element::new(Value::new().port(1))]);
    batch.flush_set("s");
    batch.delete_set("s");
    batch.delete_chain("c");
    batch.delete_table();
    let said: Vec<_> = (0..batch.len()).map(|step| batch.describe(step)).collect();
    assert_eq!(
        said,
        [
            "add table t",
            "add chain c",
            "flush chain c",
            "add rule to c",
            "delete rule 7 of c",
            "add set s",
            "add elements of s",
            "delete elements of s",
            "flush set s",
            "delete set s",
            "delete chain c",
            "delete table t",
        ]
    );
}
