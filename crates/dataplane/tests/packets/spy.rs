//! Counts packets that leave the node, in a table of its own behind all others; on the kernel that has
//! IPVS and no `nf_tables`, in a rule of iptables.

use std::net::IpAddr;

use ferrule_testbed::{Lab, Place, feed, run, variable, word};

/// Counts what leaves to one address after translation, until it is dropped.
pub struct Spy {
    node: Place,
    family: &'static str,
    /// The rule, where it is one of iptables.
    rule: Option<String>,
}

impl Spy {
    /// Counts what leaves to this address.
    pub fn on(lab: &Lab, to: IpAddr) -> Self {
        let word = word(lab.family);
        if variable("FERRULE_UML") {
            let spy = Self {
                node: lab.node.clone(),
                family: word,
                rule: Some(format!("POSTROUTING -d {to} -j ACCEPT")),
            };
            spy.iptables("-A");
            return spy;
        }
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
        Self {
            node,
            family,
            rule: None,
        }
    }

    /// Adds or deletes the rule of iptables, where there is one.
    fn iptables(&self, verb: &str) -> bool {
        let Some(rule) = &self.rule else {
            return false;
        };
        let words = format!("-t mangle {verb} {rule}");
        self.programs("", words);
        true
    }

    fn programs(&self, end: &str, words: String) -> String {
        let stem = if self.family == "ip" {
            "iptables"
        } else {
            "ip6tables"
        };
        let program = format!("{stem}{end}");
        self.node
            .run(move || run(&program, &words.split(' ').collect::<Vec<_>>()))
    }

    /// How many packets there were.
    pub fn count(&self) -> u64 {
        if self.rule.is_some() {
            let saved = self.programs("-save", "-c -t mangle".to_owned());
            let rule = saved.lines().find(|line| line.contains("-A POSTROUTING"));
            let (packets, _) = rule.unwrap()[1..].split_once(':').unwrap();
            return packets.parse().unwrap();
        }
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
        if self.iptables("-D") {
            return;
        }
        let family = self.family;
        self.node
            .run(move || run("nft", &["delete", "table", family, "spy"]));
    }
}
