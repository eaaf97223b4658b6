//! Where a case happens: a lab whose node is programmed in one of the modes.

use std::io::ErrorKind;
use std::ops::Deref;
use std::thread;

use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_testbed::cluster::{Objects, node};
use ferrule_testbed::{Lab, Protocol, leave_out};

use crate::modes::{Knobs, Mode, USERSPACE, modes};
use crate::scene::Scene;

/// A lab, and the mode of its node.
pub struct World {
    lab: Lab,
    pub mode: Mode,
}

impl Deref for World {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl World {
    /// A cluster of which the node knows nothing but itself.
    pub fn scene(&self, settings: Settings) -> Scene {
        let place = Some(self.lab.node.clone());
        let mut scene = Scene::new(self.mode, self.family, place, settings);
        scene.node(node("here").at(self.node_ip()));
        scene
    }

    /// The protocols that Services here are asked over. Mode userspace cannot relay SCTP and refuses
    /// it: rows of the table show that.
    pub fn protocols(&self) -> &'static [Protocol] {
        if self.mode.like == USERSPACE {
            &[Protocol::Tcp, Protocol::Udp]
        } else {
            &Protocol::ALL
        }
    }

    fn open(mode: Mode, family: Family) -> Option<Self> {
        let lab = Lab::open(family)?;
        let opened = lab
            .node
            .run(move || mode.open(family, Knobs::default()).map(drop));
        is_there(mode, opened).then_some(Self { lab, mode })
    }
}

/// Whether the machine has what a mode needs. Where `CI` is set it must.
pub fn is_there(mode: Mode, opened: std::io::Result<()>) -> bool {
    match opened {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            leave_out(&format!("mode {}: {error}", mode.name));
            false
        }
        Err(error) => panic!("{}: {error}", mode.name),
    }
}

/// Runs a case in every mode and both families, all at once: most of the time they wait.
pub fn everywhere(case: fn(&World)) {
    in_worlds(modes(), case);
}

/// Runs a case in all modes but those that are like this one of kube-proxy.
pub fn everywhere_but(unlike: &str, because: &str, case: fn(&World)) {
    everywhere_but_in(&[unlike], because, case);
}

/// The same for several.
pub fn everywhere_but_in(unlike: &[&str], because: &str, case: fn(&World)) {
    assert!(!because.is_empty(), "a case that is left out has a reason");
    let others = modes().into_iter();
    let others = others.filter(|mode| !unlike.contains(&mode.like));
    eprintln!("not in {}: {because}", unlike.join(" and "));
    in_worlds(others.collect(), case);
}

/// Runs a case in this way to program a node alone.
pub fn only_by(mode: Mode, case: fn(&World)) {
    in_worlds(vec![mode], case);
}

/// Runs a case in those modes alone that are like this one of kube-proxy, because the others differ.
pub fn only_like(like: &str, because: &str, case: fn(&World)) {
    assert!(!because.is_empty(), "a case that is left out has a reason");
    let (those, others): (Vec<_>, Vec<_>) = modes().into_iter().partition(|m| m.like == like);
    for mode in others {
        eprintln!("not in {}: {because}", mode.name);
    }
    in_worlds(those, case);
}

fn in_worlds(modes: Vec<Mode>, case: fn(&World)) {
    in_threads(modes, move |mode, family| {
        World::open(mode, family).iter().for_each(case);
    });
}

/// Does something for each mode and family in a thread that is named after both.
pub fn in_threads(modes: Vec<Mode>, work: impl Fn(Mode, Family) + Copy + Send) {
    thread::scope(|scope| {
        for (mode, family) in modes
            .into_iter()
            .flat_map(|mode| Family::ALL.map(|f| (mode, f)))
        {
            thread::Builder::new()
                .name(format!("{} {family:?}", mode.name))
                .spawn_scoped(scope, move || work(mode, family))
                .unwrap();
        }
    });
}
