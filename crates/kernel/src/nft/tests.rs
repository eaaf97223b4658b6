//! Captured messages, read without a kernel, whole and damaged.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::expr::{CT_NEW, CmpOp, CtKey};
use super::*;
use crate::exchange::Verdict as Refusal;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::tests::bytes;
use crate::wire::{NLM_F_MULTI, NLMSG_DONE, messages};

const TABLE: &str = include_str!("../../testdata/table.hex");
const CHAIN: &str = include_str!("../../testdata/chain.hex");
const RULE: &str = include_str!("../../testdata/rule.hex");
const SET: &str = include_str!("../../testdata/set.hex");
const ELEMENTS: &str = include_str!("../../testdata/elements.hex");
const ERROR: &str = include_str!("../../testdata/error.hex");
const GENERATION: &str = include_str!("../../testdata/generation.hex");
const ADD_MAP: &str = include_str!("../../testdata/add-map.hex");
const ADD_RANGE_SET: &str = include_str!("../../testdata/add-range-set.hex");
const ADD_ELEMENTS: &str = include_str!("../../testdata/add-elements.hex");
const ADD_RULE: &str = include_str!("../../testdata/add-rule.hex");

const ALL: [&str; 11] = [
    TABLE,
    CHAIN,
    RULE,
    SET,
    ELEMENTS,
    ERROR,
    GENERATION,
    ADD_MAP,
    ADD_RANGE_SET,
    ADD_ELEMENTS,
    ADD_RULE,
];

fn objects(hex: &str) -> Vec<Object> {
    messages(&bytes(hex))
        .map(|message| Object::read(&message.unwrap()).unwrap())
        .collect()
}

#[test]
fn captured_objects_are_understood() {
    let [Object::Table(table)] = &objects(TABLE)[..] else {
        panic!("no table")
    };
    assert_eq!(&*table.object.name, "kube-proxy");
    assert_eq!(table.object.comment, Some("rules for kube-proxy".into()));
    let [Object::Chain(chain)] = &objects(CHAIN)[..] else {
        panic!("no chain")
    };
    let expected = Chain::base("filter-pre-dnat", ChainKind::Filter, Hook::Prerouting, -110);
    assert_eq!(chain.object, expected);
    let [Object::Set(set)] = &objects(SET)[..] else {
        panic!("no set")
    };
    let expected = Set::new("cluster-ips", [Field::Ipv4Addr]).comment("Active ClusterIPs");
    assert_eq!(set.object, expected);
    let [Object::Elements(list)] = &objects(ELEMENTS)[..] else {
        panic!("no elements")
    };
    let key = Value::new().protocol(17).port(30053);
    let expected = Element::verdict(key, Verdict::Goto("sticky-2".into()));
    assert_eq!(
        (&*list.set, &list.elements[..]),
        ("service-nodeports", &[expected][..])
    );
}

/// A whole dump of one set with these elements.
fn dump(elements: &[Element]) -> Answer {
    let mut writer = Writer::new();
    let start = writer.begin(msg::NEWSETELEM, NLM_F_MULTI, 0);
    header(&mut writer, Family::V4.number());
    writer.text(elem::LIST_TABLE, "t");
    writer.text(elem::LIST_SET, "s");
    writer.nest(elem::LIST_ELEMENTS, |writer| {
        for element in elements {
            element.write(writer);
        }
    });
    writer.end(start);
    let start = writer.begin(NLMSG_DONE, NLM_F_MULTI, 0);
    writer.raw(&[0; 4]);
    writer.end(start);
    Answer::Replay(vec![writer.bytes().to_vec()])
}

#[test]
fn a_dump_with_an_element_twice_is_made_again_and_given_up_in_the_end() {
    let script = Script::default();
    let mut nft = Nft::new(Recorder::new(script.clone()));
    let [a, b] = [1, 2].map(|port| Element::new(Value::new().protocol(6).port(port)));
    // The end of a range is another element than the beginning of one.
    let end = Element {
        ends_range: true,
        ..a.clone()
    };
    let whole = [a.clone(), b, end];
    for torn in [0, 1, 3] {
        for _ in 0..torn {
            script.answer(dump(&[a.clone(), a.clone()]));
        }
        script.answer(dump(&whole));
        assert_eq!(nft.elements(Family::V4, "t", "s").unwrap(), whole);
    }
    for _ in 0..100 {
        script.answer(dump(&[a.clone(), a.clone()]));
    }
    let error = nft.elements(Family::V4, "t", "s").unwrap_err();
    assert!(matches!(error, RequestError::Interrupted), "{error:?}");
    assert!(script.take_requests().len() < 20);
}

#[test]
fn a_captured_rule_is_understood() {
    let [Object::Rule(rule)] = &objects(RULE)[..] else {
        panic!("no rule")
    };
    let number = |number| Value::new().number(number);
    let expected = vec![
        Expr::Ct {
            key: CtKey::State,
            into: Reg::FIRST,
        },
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: number(CT_NEW),
            xor: number(0),
        },
        Expr::Cmp {
            op: CmpOp::NotEqual,
            reg: Reg::FIRST,
            value: number(0),
        },
        Expr::Verdict(Verdict::Jump("firewall-check".into())),
    ];
    assert_eq!(rule.object, Rule::new("filter-pre-dnat", expected));
    assert_ne!(rule.handle, 0);
}

#[test]
fn a_captured_notification_is_understood() {
    let [Event::Change(change)] = &watch::read(&bytes(GENERATION), |_| true)[..] else {
        panic!("no change")
    };
    let Object::Generation(generation) = &change.object else {
        panic!("no generation")
    };
    assert_eq!(generation.id, 2);
    assert_eq!(generation.process_name.as_deref(), Some("nft"));
}

#[test]
fn what_is_not_understood_counts_as_missed() {
    let mut damaged = bytes(GENERATION);
    damaged.truncate(damaged.len() - 4);
    assert_eq!(watch::read(&damaged, |_| true), [Event::Missed]);
}

#[test]
fn a_captured_error_is_understood() {
    let bytes = bytes(ERROR);
    let message = messages(&bytes).next().unwrap().unwrap();
    let expected = Refusal {
        errno: libc::ENOENT,
        message: None,
        offset: Some(36),
    };
    assert_eq!(Refusal::read(&message), Ok(expected));
}

#[test]
fn expressions_that_are_not_ours_survive() {
    let unknown = Expr::Unknown {
        name: "quota".into(),
        data: [8, 0, 1, 0, 0, 0, 0, 9].into(),
    };
    let rule = Rule::new("c", vec![unknown]);
    let mut batch = Batch::new(Family::V4, "t");
    batch.add_rule(&rule);
    let (_, body, _) = batch.parts();
    let message = messages(body).next().unwrap().unwrap();
    let Ok(Object::Rule(read)) = Object::read(&message) else {
        panic!("no rule")
    };
    assert_eq!(read.object, rule);
}

/// What the reader makes of the only message of a batch.
fn reread(batch: &Batch) -> Object {
    let (_, body, _) = batch.parts();
    let message = messages(body).next().unwrap().unwrap();
    Object::read(&message).unwrap()
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let field = prop::sample::select(vec![
        Field::Ipv4Addr,
        Field::Ipv6Addr,
        Field::Protocol,
        Field::Port,
        Field::Mark,
        Field::Interface,
        Field::Number,
    ]);
    proptest::collection::vec(field, 1..=4)
}

fn map_data() -> impl Strategy<Value = MapData> {
    prop_oneof![
        Just(MapData::None),
        Just(MapData::Verdict),
        fields().prop_map(MapData::Value),
    ]
}

fn sets() -> impl Strategy<Value = Set> {
    let timeout = prop_oneof![
        Just(Timeout::None),
        Just(Timeout::PerElement),
        (1..1_000_000_u64).prop_map(|millis| Timeout::Default(Duration::from_millis(millis))),
    ];
    let flags = any::<(bool, bool)>();
    // Longer comments may be cut to leave room for the description of types.
    let comment = proptest::option::of("[a-z ]{0,10}");
    (fields(), map_data(), flags, timeout, any::<u32>(), comment).prop_map(
        |(key, data, (interval, dynamic), timeout, size, comment)| Set {
            data,
            interval,
            dynamic,
            timeout,
            size: NonZeroU32::new(size),
            comment: comment.as_deref().map(Comment::new),
            ..Set::new("s", key)
        },
    )
}

fn values() -> impl Strategy<Value = Value> {
    proptest::collection::vec(any::<u8>(), 1..=64)
        .prop_map(|bytes| Value::from_bytes(&bytes).unwrap())
}

fn elements() -> impl Strategy<Value = Element> {
    let data = prop_oneof![
        Just(Data::None),
        Just(Data::Verdict(Verdict::Drop)),
        "[a-z/-]{1,40}".prop_map(|chain| Data::Verdict(Verdict::Goto(chain.into()))),
        values().prop_map(Data::Value),
    ];
    let time = || proptest::option::of((1..1_000_000_u64).prop_map(Duration::from_millis));
    let last = proptest::option::of(values().prop_map(Box::new));
    let comment = proptest::option::of("\\PC{0,40}");
    let flags = any::<(bool, bool)>();
    (values(), last, flags, data, time(), time(), comment).prop_map(
        |(key, last, (ends_range, catch_all), data, timeout, expires, comment)| Element {
            // Whatever stands for all keys has none.
            key: if catch_all { Value::new() } else { key },
            last,
            ends_range: ends_range && !catch_all,
            catch_all,
            data,
            timeout,
            expires,
            comment: comment.as_deref().map(Comment::new),
        },
    )
}

proptest! {
    #[test]
    fn sets_are_read_as_written(set in sets()) {
        let mut batch = Batch::new(Family::V4, "t");
        batch.add_set(&set);
        let Object::Set(read) = reread(&batch) else { panic!("no set") };
        prop_assert_eq!(read.object, set);
    }

    #[test]
    fn elements_are_read_as_written(elements in proptest::collection::vec(elements(), 1..5)) {
        let mut batch = Batch::new(Family::V6, "t");
        batch.add_elements("s", &elements);
        let Object::Elements(read) = reread(&batch) else { panic!("no elements") };
        prop_assert_eq!(read.elements, elements);
    }

    #[test]
    fn no_damage_makes_reading_panic(
        which in 0..ALL.len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes(ALL[which]);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        for message in messages(&bytes).flatten() {
            let _ = Object::read(&message);
            let _ = Refusal::read(&message);
            let _ = object::describe(&message);
        }
        watch::read(&bytes, |_| true);
    }

    #[test]
    fn no_bytes_make_reading_panic(
        kind in 0xa00_u16..0xa20,
        body in proptest::collection::vec(any::<u8>(), 0..128),
    ) {
        let message = crate::wire::Message { kind, flags: 0x200, sequence: 0, port: 0, body: &body };
        let _ = Object::read(&message);
        let _ = Refusal::read(&message);
    }
}
