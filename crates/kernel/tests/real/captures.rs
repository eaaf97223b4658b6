//! Messages as they travelled, kept in `testdata` for tests that need no kernel.

use std::time::Duration;

use ferrule_kernel::Family;
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Tuple};
use ferrule_kernel::nft::{Batch, Chain, Element, Nft, Object, Table, Value, Verdict};
use ferrule_kernel::recorder::{Recorder, Script};
use ferrule_kernel::socket::{Protocol, Received, Socket};
use ferrule_kernel::wire::{Message, messages};

use crate::sample::{TABLE, sample};
use crate::support::{Tap, captured, in_namespace, pick, run};

fn read(bytes: &[u8]) -> Message<'_> {
    messages(bytes).next().unwrap().unwrap()
}

fn keep(name: &str, caption: &str, datagrams: &[Vec<u8>], kind: u16) {
    let now = pick(datagrams, kind);
    let kept = captured(name, caption, &now);
    let object = |bytes: &[u8]| Object::read(&read(bytes)).unwrap();
    assert_eq!(object(&kept), object(&now), "{name}");
}

#[test]
fn what_the_kernel_says_about_a_table_is_what_was_kept() {
    in_namespace(|| {
        let family = Family::V4;
        let sent = sample(family).batch();
        let mut nft = Nft::new(Tap::open(Protocol::Netfilter));
        nft.commit(&sent).unwrap();
        let tap = |nft: &mut Nft<Tap>| std::mem::take(&mut nft.transport_mut().received);
        tap(&mut nft);
        nft.tables(family).unwrap();
        keep(
            "table.hex",
            "A table with a comment, as dumped by Linux 6.18.",
            &tap(&mut nft),
            0xa00,
        );
        nft.chains(family, TABLE).unwrap();
        keep(
            "chain.hex",
            "A base chain, as dumped by Linux 6.18.",
            &tap(&mut nft),
            0xa03,
        );
        nft.rules(family, TABLE).unwrap();
        let rules = tap(&mut nft);
        keep(
            "rule.hex",
            "A rule with ct, bitwise, cmp and jump, as dumped by Linux 6.18.",
            &rules,
            0xa06,
        );
        nft.sets(family, TABLE).unwrap();
        keep(
            "set.hex",
            "A set with a comment, as dumped by Linux 6.18.",
            &tap(&mut nft),
            0xa09,
        );
        nft.elements(family, TABLE, "service-nodeports").unwrap();
        let elements = tap(&mut nft);
        keep(
            "elements.hex",
            "An element of a verdict map, as dumped by Linux 6.18.",
            &elements,
            0xa0c,
        );
        nft.generation().unwrap();
    });
}

#[test]
fn what_the_kernel_says_to_a_mistake_is_what_was_kept() {
    in_namespace(|| {
        let mut nft = Nft::new(Tap::open(Protocol::Netfilter));
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.add_table(&Table::new(TABLE));
        batch.add_chain(&Chain::new("c"));
        let verdict = Verdict::Goto("missing".into());
        batch.add_elements("s", [Element::verdict(Value::new().port(1), verdict)]);
        nft.commit(&batch).unwrap_err();
        let received = std::mem::take(&mut nft.transport_mut().received);
        let mut now = pick(&received, 2);
        // The header of the request is repeated in it, number and port too.
        now[28..36].fill(0);
        let caption = "An error with extended acknowledgement from Linux 6.18: ENOENT, and the\n\
                       offset of the name of the set that does not exist.";
        let kept = captured("error.hex", caption, &now);
        let verdict = |bytes: &[u8]| ferrule_kernel::exchange::Verdict::read(&read(bytes)).unwrap();
        assert_eq!(verdict(&kept), verdict(&now));
        assert!(verdict(&kept).offset.is_some());
    });
}

#[test]
fn what_is_asked_of_the_kernel_is_what_was_kept() {
    let sample = sample(Family::V4);
    let set = |name: &str| sample.sets.iter().find(|set| *set.name == *name).unwrap();
    let rule = |chain: &str| sample.rules.iter().find(|r| *r.chain == *chain).unwrap();
    let elements = |name: &str| &sample.elements.iter().find(|e| *e.0 == *name).unwrap().1;
    let check = |file: &str, caption: &str, add: &dyn Fn(&mut Batch) -> usize| {
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.expect_generation(7);
        add(&mut batch);
        let script = Script::default();
        Nft::new(Recorder::new(script.clone()))
            .commit(&batch)
            .unwrap();
        let bytes = script.take_requests().remove(0);
        assert_eq!(captured(file, caption, &bytes), bytes, "{file}");
    };
    check(
        "add-map.hex",
        "A batch that expects generation 7 and adds the map of endpoint slots, with its types\n\
         described by expressions.",
        &|batch| batch.add_set(set("endpoints")),
    );
    check(
        "add-range-set.hex",
        "A batch that adds a set of ranges of several fields.",
        &|batch| batch.add_set(set("firewall-allow")),
    );
    check(
        "add-elements.hex",
        "A batch that adds two elements to the map of endpoint slots.",
        &|batch| batch.add_elements("endpoints", elements("endpoints")),
    );
    check(
        "add-rule.hex",
        "A batch that adds the rule which picks one of two endpoints.",
        &|batch| batch.add_rule(rule("pick-2")),
    );
}

#[test]
fn what_the_kernel_tells_by_itself_is_understood_as_kept() {
    in_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        socket.join(7).unwrap();
        run("nft", &["add", "table", "ip", TABLE]);
        let mut heard = Vec::new();
        while let Received::Datagram(datagram) = socket.listen(Duration::ZERO).unwrap() {
            heard.push(datagram.to_vec());
        }
        let caption = "A new generation, told by Linux 6.18 after `nft add table`.";
        let kept = captured("generation.hex", caption, &pick(&heard, 0xa0f));
        let Ok(Object::Generation(generation)) = Object::read(&read(&kept)) else {
            panic!("no generation")
        };
        assert_eq!(generation.process_name.as_deref(), Some("nft"));
        assert!(generation.process.is_some());
    });
}

#[test]
fn a_flow_is_understood_as_kept() {
    in_namespace(|| {
        let tuple = |from: &str, to: &str| Tuple {
            source: from.parse().unwrap(),
            destination: to.parse().unwrap(),
            protocol: 17,
        };
        let original = tuple("10.0.0.1:1000", "10.96.0.10:53");
        let reply = tuple("10.1.0.2:5353", "10.0.0.1:1000");
        let flow = Flow {
            zone: 3,
            ..Flow::new(original, reply)
        };
        let mut conntrack = Conntrack::new(Tap::open(Protocol::Netfilter));
        conntrack.insert(&flow).unwrap();
        conntrack.flows(&Filter::all(Family::V4), |_| true).unwrap();
        let now = pick(&conntrack.transport_mut().received, 0x100);
        let caption = "A UDP flow in zone 3 that was translated, as dumped by Linux 6.18.";
        captured("flow.hex", caption, &now);
    });
}

#[test]
fn an_address_is_understood_as_kept() {
    in_namespace(|| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        socket.join(9).unwrap();
        run(
            "ip",
            &["address", "add", "fd00::7/64", "dev", "lo", "nodad"],
        );
        let Received::Datagram(datagram) = socket.listen(Duration::from_secs(10)).unwrap() else {
            panic!("nothing was heard")
        };
        let now = pick(&[datagram.to_vec()], 20);
        captured(
            "address.hex",
            "An address of IPv6, told by Linux 6.18.",
            &now,
        );
    });
}
