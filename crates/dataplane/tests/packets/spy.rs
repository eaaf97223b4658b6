//! Counts packets that leave the node, in a table of its own behind all others.

use std::net::IpAddr;

use ferrule_testbed::{Lab, Place, feed, run, word};

/// Counts what leaves to one address after translation, until it is dropped.
pub struct Spy {
    node: Place,
    family: &'static str,
}

impl Spy {
    /// Counts what leaves to this address.
    pub fn on(lab: &Lab, to: IpAddr) -> Self {
        let word = word(lab.family);
        Self::matching(lab, &format!("{word} daddr {to}"))
    }

    /// Counts what leaves and matches these words of `nft`.
    pub fn matching(lab: &Lab, words: &str) -> Self {
        let family = word(lab.family);
        let text = format!(
            "table {family} spy {{
                counter seen {{ }}
                chain last {{
                    type filter hook postrouting priority 300
                    {words} counter name seen
                }}
            }}"
        );
        let node = lab.node.clone();
        node.run(move || feed("nft", &["-f", "-"], &text));
        Self { node, family }
    }

    /// How many packets there were.
    pub fn count(&self) -> u64 {
        let family = self.family;
        let text = self
            .node
            .run(move || run("nft", &["list", "counter", family, "spy", "seen"]));
        let mut words = text.split_whitespace();
        words.find(|word| *word == "packets");
        words.next().unwrap().parse().unwrap()
    }
}

impl Drop for Spy {
    fn drop(&mut self) {
        let family = self.family;
        self.node
            .run(move || run("nft", &["delete", "table", family, "spy"]));
    }
}
