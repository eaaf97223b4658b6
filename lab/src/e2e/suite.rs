//! Runs upstream's suite and reads what it reports.
//!
//! In: a cluster that is up, and which tests. Out: the suite's own report beside its log, and from it
//! what became of each test that was selected.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::table::Outcome;
use crate::control;
use crate::os;
use crate::process::Process;
use crate::tools::Cluster;

/// What the suite writes, in the folder of its run.
pub const REPORT: &str = "report.json";
/// Everything of sig-network.
pub const FOCUS: &str = r"\[sig-network\]";
/// What is asked first of a proxy: a Service in every way, its names, and ports of nodes.
pub const SMOKE: &str = "should serve a basic endpoint from pods|\
     should be able to change the type from ExternalName to NodePort|\
     should have session affinity work for service with type clusterIP|\
     should function for node-Service: http|should provide DNS for services|\
     HostPort validates";
/// What needs another cluster, would disturb other tests, or takes too long.
const SKIP: &str = concat!(
    r"\[Slow\]|\[Serial\]|\[Disruptive\]|\[Flaky\]|\[Alpha\]|LoadBalancer|SCTP|",
    r"\[Feature:(Ingress|KubeProxyNFAcct|NetworkPolicy|Networking-DNS|Networking-IPv4|",
    r"Networking-IPv6|Networking-Performance|OffByDefault|PerformanceDNS)\]"
);
/// The whole takes ten minutes on two processors that are free.
const TIMEOUT: Duration = Duration::from_mins(90);

/// Which tests, and how many at once.
pub struct Selection<'a> {
    pub focus: &'a str,
    pub processes: u8,
}

/// What became of each test, by name.
pub type Outcomes = BTreeMap<String, Outcome>;

/// Runs the tests. Failing ones are in the report and no error. `check` is asked now and then.
pub fn run(
    cluster: &Cluster,
    folder: &Path,
    selection: &Selection<'_>,
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let programs = &cluster.kubernetes;
    let mut ginkgo = os::command(programs.join("ginkgo"));
    ginkgo
        .arg("--no-color")
        // Some tests do not wait until a pod listens that was just started.
        .arg("--flake-attempts=2")
        .arg(format!("--procs={}", selection.processes))
        .arg(format!("--focus={}", selection.focus))
        .arg(format!("--skip={SKIP}"))
        .arg(format!("--timeout={}m", TIMEOUT.as_secs() / 60))
        .arg(format!("--output-dir={}", folder.display()))
        .arg(format!("--json-report={REPORT}"))
        .arg(programs.join("e2e.test"))
        .arg("--")
        .arg("--provider=skeleton")
        .arg("--num-nodes=3")
        .arg("--node-os-distro=debian")
        .arg(format!(
            "--kubeconfig={}",
            control::kubeconfig(folder).display()
        ))
        .arg(format!(
            "--kubectl-path={}",
            programs.join("kubectl").display()
        ))
        .env("HOME", folder);
    let mut suite = Process::start("suite", &mut ginkgo, folder)?;
    println!("the suite writes to {}", suite.log().display());
    let ended = os::poll(TIMEOUT + TIMEOUT, || {
        std::thread::sleep(Duration::from_secs(1));
        if let Err(error) = check() {
            return Some(Err(error));
        }
        suite.ended().map(Ok)
    });
    let Some(ended) = ended else {
        bail!("the suite does not end: {}", suite.log_end());
    };
    ended?;
    if !folder.join(REPORT).is_file() {
        bail!("the suite ended without a report: {}", suite.log_end());
    }
    Ok(())
}

/// Reads a report.
pub fn read(file: &Path) -> Result<Outcomes> {
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let report: Value = serde_json::from_slice(&text)?;
    let outcomes = outcomes(&report);
    if outcomes.is_empty() {
        bail!("no test was run; see {}", file.display());
    }
    Ok(outcomes)
}

fn outcomes(report: &Value) -> Outcomes {
    let suites = report.as_array().into_iter().flatten();
    let specs = suites.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    specs.filter_map(outcome).collect()
}

/// One test, unless it was not selected.
fn outcome(spec: &Value) -> Option<(String, Outcome)> {
    let kind = spec["LeafNodeType"].as_str()?;
    let state = spec["State"].as_str()?;
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
    let first = message.lines().map(str::trim).find(|line| !line.is_empty());
    let message = first.unwrap_or_default().to_owned();
    let outcome = match state {
        "passed" if spec["NumAttempts"].as_u64() > Some(1) => Outcome::PassedAgain,
        "passed" => Outcome::Passed,
        // Tests that were not selected give no reason.
        "skipped" if message.is_empty() => return None,
        "skipped" => Outcome::Skipped(message),
        "pending" => return None,
        _ => Outcome::Failed(message),
    };
    if kind != "It" {
        // Preparations count when they fail: then nothing was tested.
        let failed = matches!(outcome, Outcome::Failed(_));
        return failed.then(|| (kind.to_owned(), outcome));
    }
    let above = spec["ContainerHierarchyTexts"].as_array();
    let mut words: Vec<_> = above
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    words.extend(spec["LeafNodeText"].as_str());
    Some((words.join(" "), outcome))
}

/// How many of which.
pub fn summary(outcomes: &Outcomes) -> String {
    let count = |is: fn(&Outcome) -> bool| outcomes.values().filter(|one| is(one)).count();
    format!(
        "{} tests passed, {} at the second attempt, {} failed, {} skipped themselves",
        count(|one| *one == Outcome::Passed),
        count(|one| *one == Outcome::PassedAgain),
        count(|one| matches!(one, Outcome::Failed(_))),
        count(|one| matches!(one, Outcome::Skipped(_)))
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_that_were_not_selected_are_no_results() {
        let spec = |name: &str, state: &str, message: &str| {
            json!({
                "LeafNodeType": "It",
                "ContainerHierarchyTexts": ["[sig-network] Services"],
                "LeafNodeText": name,
                "State": state,
                "Failure": { "Message": message },
            })
        };
        let mut again = spec("e", "passed", "");
        again["NumAttempts"] = 2.into();
        let report = json!([{ "SpecReports": [
            { "LeafNodeType": "BeforeSuite", "State": "passed" },
            spec("a", "passed", ""),
            spec("b", "skipped", ""),
            spec("c", "skipped", "needs more nodes\nfar more"),
            spec("d", "failed", "\nno answer"),
            again,
        ] }]);
        let outcomes = outcomes(&report);
        let of = |name: &str| outcomes.get(&format!("[sig-network] Services {name}"));
        assert_eq!(outcomes.len(), 4);
        assert_eq!(of("a"), Some(&Outcome::Passed));
        assert_eq!(of("b"), None);
        assert_eq!(of("c"), Some(&Outcome::Skipped("needs more nodes".into())));
        assert_eq!(of("d"), Some(&Outcome::Failed("no answer".into())));
        assert_eq!(
            summary(&outcomes),
            "1 tests passed, 1 at the second attempt, 1 failed, 1 skipped themselves"
        );
    }

    #[test]
    fn a_suite_that_could_not_begin_has_failed() {
        let report = json!([{ "SpecReports": [
            { "LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
              "Failure": { "Message": "no nodes" } },
        ] }]);
        let failed = Outcome::Failed("no nodes".into());
        assert_eq!(
            outcomes(&report).get("SynchronizedBeforeSuite"),
            Some(&failed)
        );
    }
}
