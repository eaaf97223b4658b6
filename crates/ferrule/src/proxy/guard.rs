//! Notices that somebody else changed our rules, and tells sync.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::iptables::Canary;
use ferrule_dataplane::listen::{Listener, Rules};
use tokio::sync::mpsc;

use super::reporter::whole;
use crate::logging::info_v;
use crate::sync::Input;

/// How long to wait for a change; it only matters that it is long.
const TIMEOUT: Duration = Duration::from_hours(1);

/// How long to wait before listening again when that failed.
const HEARING_LOST: Duration = Duration::from_secs(10);

/// One change often comes in many pieces; silence for so long ends it.
const PIECES: Duration = Duration::from_millis(1);

/// So many pieces are believed at once, however many follow.
const ENOUGH: usize = 256;

/// How others' changes are noticed.
pub struct Guard {
    /// By what changes of ours are told from those of others, and whose rules they are.
    own: Vec<(Rules, u32)>,
    canaries: Vec<(Family, Canary)>,
    /// How often canaries are looked at.
    period: Duration,
}

/// The families that one change concerns, in however many pieces it comes. Telling sync of each
/// piece would have it look at everything again after it has repaired everything.
fn change(listener: &mut Listener) -> io::Result<BTreeSet<Family>> {
    let mut families = BTreeSet::new();
    let mut piece = listener.next(TIMEOUT)?;
    for _ in 0..ENOUGH {
        if piece.is_empty() {
            break;
        }
        families.extend(piece);
        piece = listener.next(PIECES)?;
    }
    families.extend(piece);
    Ok(families)
}

impl Guard {
    /// Nothing is guarded yet.
    pub const fn new(period: Duration) -> Self {
        Self {
            own: Vec::new(),
            canaries: Vec::new(),
            period,
        }
    }

    /// The kernel tells of changes to these rules; those of this port are ours.
    pub fn listen_except(&mut self, rules: Rules, port: u32) {
        self.own.push((rules, port));
    }

    /// Where nothing is told, or was before anybody listened, it is asked for now and then.
    pub fn watch_canary(&mut self, family: Family, canary: Canary) {
        self.canaries.push((family, canary));
    }

    /// Begins. Not before everything was programmed once: until then all is as others left it.
    pub fn start(self, sync: mpsc::Sender<Input>) {
        for rules in [Rules::Nftables, Rules::Iptables] {
            let own = self.own.iter().filter(|(whose, _)| *whose == rules);
            let own: Vec<u32> = own.map(|(_, port)| *port).collect();
            if !own.is_empty() {
                let sync = sync.clone();
                // At once: nobody tells what happens before.
                let listener = Listener::open(rules, own.clone());
                spawn(move || listen(listener, rules, &own, &sync));
            }
        }
        let (canaries, period) = (self.canaries, self.period);
        if !canaries.is_empty() {
            spawn(move || look_after(&canaries, period, &sync));
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name("guard".to_owned());
    if let Err(error) = thread.spawn(work) {
        tell(&error);
    }
}

fn tell(error: &io::Error) {
    let err = whole(error);
    tracing::error!(
        err,
        "Changes that others make to the rules may go unnoticed"
    );
}

/// Until sync is gone.
fn listen(first: io::Result<Listener>, rules: Rules, own: &[u32], sync: &mpsc::Sender<Input>) {
    let mut result = first.and_then(|listener| hear(listener, BTreeSet::new(), sync));
    while let Err(error) = result {
        tell(&error);
        thread::sleep(HEARING_LOST);
        // Whatever happened meanwhile was told to nobody.
        let all = BTreeSet::from(Family::ALL);
        let listener = Listener::open(rules, own.to_vec());
        result = listener.and_then(|listener| hear(listener, all, sync));
    }
}

fn hear(
    mut listener: Listener,
    mut doubtful: BTreeSet<Family>,
    sync: &mpsc::Sender<Input>,
) -> io::Result<()> {
    loop {
        for family in doubtful {
            if !doubt(family, sync) {
                return Ok(());
            }
        }
        doubtful = change(&mut listener)?;
    }
}

fn look_after(canaries: &[(Family, Canary)], period: Duration, sync: &mpsc::Sender<Input>) {
    loop {
        thread::sleep(period);
        for (family, canary) in canaries {
            match canary.is_intact() {
                Ok(true) => {}
                Ok(false) if doubt(*family, sync) => {}
                Ok(false) => return,
                Err(error) => {
                    let err = whole(&error);
                    info_v!(2, ipFamily = %family, err, "Cannot tell whether rules were flushed");
                }
            }
        }
    }
}

/// Whether sync still listens.
fn doubt(family: Family, sync: &mpsc::Sender<Input>) -> bool {
    info_v!(2, ipFamily = %family, "Somebody changed our rules; looking at all of them");
    sync.blocking_send(Input::Doubt(family)).is_ok()
}
