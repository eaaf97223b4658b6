//! Two answers to one question: what manifests lead to, and what the running proxy says.
//!
//! In: both. Out: the answer from manifests, with a first line that says whether the proxy agrees, and what
//! differs: addresses, what happens there, and endpoints.

use std::collections::BTreeSet;

use super::answer::Answer;

/// Differences that are listed.
const MOST: usize = 20;

/// Compares with what the running proxy says.
pub fn with_running(answer: &mut Answer, running: &Answer) {
    let (here, there) = (facts(answer), facts(running));
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>, who: &str| {
        let lines = one.difference(other);
        lines
            .map(|fact| format!("  {who}: {fact}"))
            .collect::<Vec<_>>()
    };
    let mut differences = only(&here, &there, "only the manifests");
    differences.extend(only(&there, &here, "only the proxy"));
    let first = match differences.len() {
        0 => format!(
            "The running proxy of {} agrees with the manifests.",
            running.node
        ),
        1 => "The running proxy and the manifests differ in one thing:".to_owned(),
        many => format!("The running proxy and the manifests differ in {many} things:"),
    };
    if differences.len() > MOST {
        let more = differences.len() - MOST;
        differences.truncate(MOST);
        differences.push(format!("  and {more} more"));
    }
    differences.insert(0, first);
    answer.lines.splice(0..0, differences);
    // What only the running one knows.
    let own = running.lines.iter().filter(|line| is_of_kernel(line));
    answer
        .lines
        .extend(own.map(|line| format!("The proxy: {line}")));
}

fn is_of_kernel(line: &str) -> bool {
    ["The kernel", "Connection tracking"]
        .iter()
        .any(|begin| line.starts_with(begin))
        || line.contains(" is pending for ")
        || line.contains(" live flow")
}

/// What an answer says about packets, each once.
fn facts(answer: &Answer) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for port in &answer.ports {
        let name = format!(
            "{}:{} ({}/{})",
            port.service, port.port_name, port.family, port.protocol
        );
        for frontend in &port.frontends {
            let (address, fate) = (&frontend.address, &frontend.fate);
            facts.insert(format!("{name}: {address} is {fate}"));
        }
        for endpoint in &port.endpoints {
            let chosen = if endpoint.chosen {
                "chosen"
            } else {
                "not chosen"
            };
            facts.insert(format!("{name}: endpoint {} is {chosen}", endpoint.address));
        }
        if let Some(seconds) = port.affinity_seconds {
            facts.insert(format!(
                "{name}: clients stay with their endpoint for {seconds} s"
            ));
        }
    }
    facts
}
