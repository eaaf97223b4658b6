//! Stories are read as they are meant, and every story of this checkout can be read.

use super::line::{Outcome, Packet};
use super::*;
use crate::plan::Family;
use crate::probe::{Answer, Answers};
use crate::story::short::Memory;
use serde_json::json;

fn story(steps: &str) -> Result<Story> {
    Story::parse(
        "test",
        &format!("story: A test.\ncovers: [NFT-001]\nsteps:\n{steps}"),
    )
}

fn answers(all: &[(&str, u16, &str)]) -> Answers {
    let pod = |&(name, port, from): &(&str, u16, &str)| Answer::Pod {
        name: name.to_owned(),
        port,
        from: from.to_owned(),
    };
    all.iter().map(pod).collect()
}

#[test]
fn every_story_here_can_be_read() {
    let stories = all(&folder()).unwrap();
    assert!(!stories.is_empty());
    let parity = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parity.md");
    let parity = std::fs::read_to_string(parity).unwrap();
    for story in &stories {
        for id in story.differences() {
            assert!(
                parity.contains(id),
                "{}: {id} is not in docs/parity.md",
                story.name
            );
        }
    }
}

#[test]
fn a_line_holds_several_senders_and_pods() {
    let packet = Packet::parse("a1 outside1 -> [fd00::1]:80 udp").unwrap();
    assert_eq!(packet.senders, ["a1", "outside1"]);
    assert_eq!(
        packet.target(|_, _| None).unwrap().to_string(),
        "[fd00::1]:80"
    );

    let outcome = Outcome::parse("a1 from node1, b1:8081 b2 from client").unwrap();
    let good = [("a1", 8080, "node1"), ("b1", 8081, "a2"), ("b2", 1, "a2")];
    assert!(outcome.fits(&answers(&good), "a2"));
    assert!(!outcome.fits(&answers(&good[..2]), "a2"), "one is missing");
    assert!(
        !outcome.fits(&answers(&good), "a3"),
        "another client was seen"
    );
    let mut more = answers(&good);
    more.insert(Answer::Refused);
    assert!(!outcome.fits(&more, "a2"), "one try was refused");
}

#[test]
fn behind_a_relay_pods_see_its_node() {
    let outcome = Outcome::parse("a1 from node1, b1:8081 b2 from client").unwrap();
    let outcome = outcome.relayed_by(&["node2".to_owned()]);
    let seen = [
        ("a1", 8080, "node2"),
        ("b1", 8081, "node2"),
        ("b2", 1, "node2"),
    ];
    assert!(outcome.fits(&answers(&seen), "a2"));
    let mut as_client = seen;
    as_client[2].2 = "a2";
    assert!(!outcome.fits(&answers(&as_client), "a2"));
}

#[test]
fn affinity_is_one_of_several() {
    let outcome = Outcome::parse("one of a1 b1").unwrap();
    assert!(outcome.fits(&answers(&[("b1", 1, "a2")]), "a2"));
    assert!(!outcome.fits(&answers(&[("b1", 1, "a2"), ("a1", 1, "a2")]), "a2"));
    assert!(!outcome.fits(&answers(&[("b2", 1, "a2")]), "a2"));
}

#[test]
fn what_cannot_be_understood_is_refused() {
    for steps in [
        "- packets: [a1 => web:80 = b1]",
        "- packets: [a1 -> web:80 = z9]",
        "- packets: [zz -> web:80 = a1]",
        "- packets: [a1 -> web = a1]",
        "- packets: [a1 -> web:80 icmp = a1]",
        "- packets: [a1 -> web:80]",
        "- http: [a1 -> node1:1 = ok]",
        "- restart: everything",
        "- apply: [{servce: web}]",
        "- apply: [{service: web, ips: [10.96.0.9], ports: [x]}]",
        "- apply: [{service: web, ips: [10.96.0.9], ports: [80], endpoints: [a1 sleepy]}]",
        "- dance: [a1]",
        "- apply: [{change: web, port: 80}]",
        "- apply: [{each: 9, service: web}]",
    ] {
        assert!(story(steps).is_err(), "{steps}");
    }
}

#[test]
fn where_programs_differ_a_reason_is_needed() {
    let table = "- packets: [{line: a1 -> web:80 = a1, kube-proxy: refused";
    assert!(story(&format!("{table}}}]")).is_err());
    let story = story(&format!("{table}, differs: NFT-001}}]")).unwrap();
    assert_eq!(story.differences().collect::<Vec<_>>(), ["NFT-001"]);
    let Step::Packets(lines) = &story.steps[0] else {
        panic!("another step")
    };
    assert_eq!(
        lines[0].outcome(&"kube-proxy/nftables".parse().unwrap()),
        "refused"
    );
    assert_eq!(lines[0].outcome(&"ferrule/nftables".parse().unwrap()), "a1");
}

#[test]
fn a_change_says_only_what_is_different() {
    let mut memory = Memory::default();
    let mut objects = |item: &Value| memory.objects(item, "ns").unwrap();
    objects(&json!({
        "service": "web",
        "ips": ["10.96.1.1", "fd00:10:96::1"],
        "ports": ["80->8081 @30080"],
        "endpoints": ["a1"],
        "spec": { "type": "LoadBalancer", "externalTrafficPolicy": "Local" },
        "ingress": ["192.0.2.1"],
    }));
    let changed = objects(&json!({
        "change": "web",
        "ips": ["10.96.1.1"],
        "endpoints": ["b1"],
        "spec": { "type": "NodePort", "externalTrafficPolicy": null },
    }));
    let [service, slice] = &changed[..] else {
        panic!("{changed:?}")
    };
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(service["spec"].get("externalTrafficPolicy"), None);
    assert_eq!(service["spec"]["ipFamilyPolicy"], "SingleStack");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(service.get("status"), None, "only balancers have one");
    assert_eq!(slice["endpoints"][0]["addresses"][0], "10.244.2.1");
    let unknown = json!({ "change": "other" });
    assert!(memory.objects(&unknown, "ns").is_err());
}

#[test]
fn nodes_change_in_what_is_said() {
    let mut memory = Memory::default();
    let item = json!({ "node": "node1", "addresses": ["172.19.0.1"], "leaving": true });
    let node = memory.objects(&item, "ns").unwrap().remove(0);
    assert_eq!(node["status"]["addresses"][0]["address"], "172.19.0.1");
    assert!(node["metadata"].get("finalizers").is_some());
    let item = json!({ "node": "node1", "labels": { "zone": "west" } });
    let node = memory.objects(&item, "ns").unwrap().remove(0);
    assert_eq!(node.get("status"), None);
    assert_eq!(node["metadata"].get("finalizers"), None);
}

#[test]
fn entries_with_each_work_for_objects_lines_and_steps() {
    let story = story(
        "- each: 1..2\n  apply:\n  - { each: 1..3, service: \"web-#\", ips: [\"10.96.9.#\"], ports: [80] }\n\
         - packets: [{ each: 1..9, line: \"a1 -> web-1:# = same\" }]\n- restart: other\n",
    );
    let steps = story.unwrap().steps;
    let [
        Step::Apply(first),
        Step::Apply(_),
        Step::Packets(lines),
        Step::Restart(_),
    ] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(first.len(), 3);
    assert_eq!(lines[8].subject, "a1 -> web-1:9");
}

#[test]
fn a_short_form_stands_for_a_service_and_its_slices() {
    let mut memory = Memory::default();
    let item = json!({
        "service": "web",
        "ips": ["10.96.1.1", "fd00:10:96::1"],
        "ports": ["80->8081 @30080", "53->5353/udp"],
        "endpoints": ["a1", "b1 terminating zone=west"],
        "spec": { "type": "NodePort" },
    });
    let objects = memory.objects(&item, "ns").unwrap();
    assert_eq!(objects.len(), 3);
    assert_eq!(objects[0]["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(objects[0]["spec"]["ports"][1]["protocol"], "UDP");
    assert_eq!(objects[0]["spec"]["ipFamilyPolicy"], "RequireDualStack");
    assert_eq!(objects[2]["addressType"], "IPv6");
    assert_eq!(objects[2]["ports"][0]["port"], 8081);
    assert_eq!(objects[2]["endpoints"][1]["conditions"]["serving"], true);
    assert_eq!(
        objects[2]["endpoints"][1]["hints"]["forZones"][0]["name"],
        "west"
    );
    assert_eq!(
        memory.address("web", Family::V6).unwrap().to_string(),
        "fd00:10:96::1"
    );

    let moved = memory
        .objects(&json!({ "endpoints": { "web": [] } }), "ns")
        .unwrap();
    assert_eq!(moved.len(), 2);
    assert_eq!(moved[0]["endpoints"], json!([]));
    assert_eq!(memory.delete("web", "ns").unwrap().len(), 3);
    assert!(memory.delete("web", "ns").is_err());
}

#[test]
fn where_nothing_refuses_it_is_enough_that_no_pod_answers() {
    let outcome = Outcome::parse("refused").unwrap().without_refusals();
    for answer in [Answer::Refused, Answer::Timeout, Answer::Closed] {
        assert!(outcome.fits(&[answer].into(), "a2"));
    }
    assert!(!outcome.fits(&answers(&[("a1", 1, "a2")]), "a2"));
    let silence = Outcome::parse("timeout").unwrap().without_refusals();
    assert!(!silence.fits(&[Answer::Closed].into(), "a2"));
}
