//! Notices that somebody else changed our rules, and tells sync.

use std::io;
use std::thread;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::iptables::Canary;
use ferrule_dataplane::nftables::Listener;
use tokio::sync::mpsc;

use super::reporter::whole;
use crate::logging::info_v;
use crate::sync::Input;

/// How long to wait for a change; it only matters that it is long.
const PATIENCE: Duration = Duration::from_hours(1);

/// How long to wait before listening again when that failed.
const HEARING_LOST: Duration = Duration::from_secs(10);

/// How others' changes are noticed.
pub struct Guard {
    /// By what changes of ours are told from those of others.
    own: Vec<u32>,
    canaries: Vec<(Family, Canary)>,
    /// How often canaries are looked at.
    period: Duration,
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

    /// The kernel tells of changes to nftables; those of this port are ours.
    pub fn listen_except(&mut self, port: u32) {
        self.own.push(port);
    }

    /// iptables tells nothing by itself, so it is asked now and then.
    pub fn watch_canary(&mut self, family: Family, canary: Canary) {
        self.canaries.push((family, canary));
    }

    /// Begins. Not before everything was programmed once: until then all is as others left it.
    pub fn start(self, sync: mpsc::Sender<Input>) {
        let Self {
            own,
            canaries,
            period,
        } = self;
        if !own.is_empty() {
            let sync = sync.clone();
            spawn(move || listen(&own, &sync));
        }
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
fn listen(own: &[u32], sync: &mpsc::Sender<Input>) {
    loop {
        match Listener::open(own.to_vec()).and_then(|listener| hear(listener, sync)) {
            Ok(()) => return,
            Err(error) => tell(&error),
        }
        thread::sleep(HEARING_LOST);
    }
}

fn hear(mut listener: Listener, sync: &mpsc::Sender<Input>) -> io::Result<()> {
    loop {
        for family in listener.next(PATIENCE)? {
            if !doubt(family, sync) {
                return Ok(());
            }
        }
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
