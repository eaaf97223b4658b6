//! A mode for tests, and all that a mode takes: it programs a file in the working directory.

use std::fs;

use ferrule_core::{desired::Desired, facts::Connections, model::Family};
use ferrule_dataplane::verify::Discrepancy;
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Watcher, Work};

use super::{Audit, Mode, OnExit, Opened, Section};

pub static PAPER: Mode = Mode {
    name: "paper",
    about: None,
    gate: None,
    section: Section::Iptables,
    node_port_addresses: &[],
    audit: Audit::EverySyncPeriod,
    metrics: &[],
    packets: None,
    prepare: |_, _| Ok(()),
    open: |_| Ok(Opened::without_relay(|family| Ok(Box::new(Paper(family))))),
    remove: |part| super::remove_family(part, |family| Ok(Paper(family)), &[]),
    chains: "paper",
    render: |desired, family, _, _| Ok(lines(desired, family)),
    verify: |desired, family, _, _| {
        let same = fs::read_to_string(family.as_str())? == lines(desired, family);
        let other = Discrepancy::different(family.as_str(), "other lines");
        Ok((!same).then_some(other).into_iter().collect())
    },
    binding: None,
    on_exit: OnExit::Remove,
    connections: Connections::Tracked,
};

struct Paper(Family);

impl Dataplane for Paper {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        let text = lines(work.desired, self.0);
        fs::write(self.0.as_str(), &text).map_err(ApplyError::OutOfSync)?;
        Ok(Applied::steps(text.lines().count()))
    }

    fn remove(&mut self) -> Result<Applied, ApplyError> {
        let removed = fs::remove_file(self.0.as_str());
        Ok(Applied::steps(removed.iter().len()))
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        Vec::new()
    }
}

fn lines(desired: &Desired, family: Family) -> String {
    let exposures = desired.exposures(family).into_iter();
    let keys: Vec<_> = exposures.map(|exposure| exposure.key.to_string()).collect();
    keys.join("\n") + "\n"
}
