//! What both families share, because a process has one relay: who is inside, ports that are held,
//! and who was here before and comes after it.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule_core::facts::{Detector, Facts};
use ferrule_core::model::{Family, PerFamily};
use ferrule_kernel::inet;
use ipnet::IpNet;

use super::Options;
use super::claims::Claims;
use super::handover::{self, Inherited, Purpose, Successor};
use super::relay::{self, Class, Key, Notice, Relay, Report, now};
use super::transparent;

/// How often a wait for connections looks whether it has become shorter.
const ASKED_AGAIN: Duration = Duration::from_millis(100);

/// How long endpoints may take to reply to datagrams when a successor receives new ones.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// The relay and what goes with it.
pub struct Process {
    relay: Relay,
    report: Report,
    /// When connections must have ended, once that is known.
    deadline: Mutex<Option<Instant>>,
    /// Clients inside the cluster.
    inside: Mutex<PerFamily<Vec<IpNet>>>,
    claims: PerFamily<Mutex<Claims>>,
    /// Where a predecessor listens, and where we do so for a successor.
    handover: Option<PathBuf>,
    /// Had by whoever changes what is open, or hands it over.
    turn: Mutex<()>,
    /// What came from a predecessor; `None` until it was asked, and after it has left.
    inherited: Mutex<Option<Inherited>>,
    /// A successor serves.
    replaced: AtomicBool,
    /// Nothing is left here but connections.
    withdrawn: (Mutex<bool>, Condvar),
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Starts the relay.
    ///
    /// # Errors
    /// The kernel refused threads or descriptors.
    pub fn start(options: &Options, report: Report) -> io::Result<Arc<Self>> {
        let relay = relay::Options {
            client_mark: options.transparent.then_some(transparent::SPEAKS),
            ..options.relay.clone()
        };
        Ok(Arc::new(Self {
            relay: Relay::start(relay, Arc::clone(&report))?,
            report,
            deadline: Mutex::default(),
            inside: Mutex::default(),
            claims: PerFamily::from_fn(|family| Mutex::new(Claims::new(family))),
            handover: options.handover.clone(),
            turn: Mutex::default(),
            inherited: Mutex::default(),
            replaced: AtomicBool::new(false),
            withdrawn: (Mutex::default(), Condvar::new()),
        }))
    }

    /// Reports something to the operator.
    pub(super) fn report(&self, notice: Notice) {
        (self.report)(notice);
    }

    /// The engine.
    pub const fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Says who is inside the cluster in one family: pods of this node, as far as networks tell,
    /// and the node itself.
    pub(super) fn set_inside(&self, family: Family, facts: &Facts, local: &[IpAddr]) {
        let own = local.iter().filter(|ip| Family::of(**ip) == family);
        let mut networks: Vec<IpNet> = own.map(|ip| IpNet::from(*ip)).collect();
        if let Some(Detector::Source(pods)) = &facts.detector {
            networks.push(*pods);
        }
        let mut inside = locked(&self.inside);
        if inside[family] != networks {
            inside[family] = networks;
            let all = Family::ALL.into_iter().flat_map(|family| &inside[family]);
            self.relay.set_inside(all.copied().collect());
        }
    }

    /// Ports of the node that are held in a family.
    pub(super) fn claims(&self, family: Family) -> MutexGuard<'_, Claims> {
        locked(&self.claims[family])
    }

    /// The turn to change what is open.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }
}

/// The end.
impl Process {
    /// Gives connections this long from now, where the end waits for them.
    pub fn end_within(&self, timeout: Duration) {
        *locked(&self.deadline) = now().checked_add(timeout);
    }

    /// Waits until no connection is open, or until it is time; resets those that are.
    pub(super) fn drain(&self) {
        let (lock, changed) = &self.withdrawn;
        *locked(lock) = true;
        changed.notify_all();
        let left = || {
            let deadline = *locked(&self.deadline);
            let left = deadline.map(|at| at.saturating_duration_since(now()));
            left.map_or(ASKED_AGAIN, |left| left.min(ASKED_AGAIN))
        };
        while self.relay.wait_until_empty(left()) > 0 && !left().is_zero() {}
        if self.is_replaced() {
            let until = now() + LAST_REPLIES;
            while self.relay.associations() > 0 && now() < until && !left().is_zero() {
                std::thread::sleep(left());
            }
        }
        self.relay.cut();
    }

    /// Connections of clients that are open.
    pub fn open_connections(&self) -> usize {
        self.relay.wait_until_empty(Duration::ZERO)
    }

    /// Resets all connections now.
    pub fn cut(&self) {
        self.end_within(Duration::ZERO);
        self.relay.cut();
    }
}

/// Predecessor and successor.
impl Process {
    /// Asks a predecessor for its sockets, once.
    pub(super) fn inherit(&self) {
        let (Some(path), inherited) = (&self.handover, &mut *locked(&self.inherited)) else {
            return;
        };
        if inherited.is_none() {
            *inherited = Some(Inherited::receive(path).unwrap_or_else(|error| {
                (self.report)(Notice::Handover { error });
                Inherited::default()
            }));
        }
    }

    /// The socket that a predecessor had for this purpose.
    pub(super) fn inherited(&self, purpose: &Purpose) -> Option<OwnedFd> {
        locked(&self.inherited).as_mut()?.take(purpose)
    }

    /// The socket of a lane that a predecessor had, if it is at this address.
    pub(super) fn inherited_lane(
        &self,
        key: &Key,
        class: Class,
        address: IpAddr,
    ) -> Option<OwnedFd> {
        let socket = self.inherited(&Purpose::Lane(key.clone(), class))?;
        let at = inet::local_address(&socket).ok()?;
        (at.ip() == address).then_some(socket)
    }

    /// Has a predecessor leave, now that everything is served here, and from then on listens for a
    /// successor: `replaced` notifies it. Returns whether there was a predecessor.
    ///
    /// # Errors
    /// The socket for a successor cannot be opened, or the predecessor did not say that it left.
    pub fn take_over(
        self: &Arc<Self>,
        replaced: impl FnOnce() + Send + 'static,
    ) -> io::Result<bool> {
        let Some(path) = &self.handover else {
            return Ok(false);
        };
        let listener = handover::listen(path)?;
        let process = Arc::clone(self);
        std::thread::Builder::new()
            .name("handover".to_owned())
            .spawn(move || process.await_successor(&listener, replaced))?;
        let inherited = locked(&self.inherited).replace(Inherited::default());
        inherited.map_or(Ok(false), Inherited::settle)
    }

    fn await_successor(&self, listener: &UnixListener, replaced: impl FnOnce()) {
        loop {
            match self.hand_over(listener) {
                Ok(Some(successor)) => {
                    replaced();
                    let (lock, changed) = &self.withdrawn;
                    drop(changed.wait_while(locked(lock), |withdrawn| !*withdrawn));
                    return successor.leave();
                }
                Ok(None) => {}
                Err(error) => {
                    (self.report)(Notice::Handover { error });
                    std::thread::sleep(ASKED_AGAIN);
                }
            }
        }
    }

    /// Waits for a successor and gives it all sockets; `None` if it then gave up.
    fn hand_over(&self, listener: &UnixListener) -> io::Result<Option<Successor>> {
        let successor = Successor::accept(listener)?;
        let _turn = self.turn();
        let lanes = self.relay.sockets()?.into_iter();
        let lanes = lanes.map(|(key, class, socket)| (Purpose::Lane(key, class), socket));
        let mut sockets: Vec<_> = lanes.collect();
        for family in Family::ALL {
            sockets.extend(self.claims(family).sockets()?);
        }
        let ready = successor.give(&sockets)?;
        self.replaced.fetch_or(ready, Ordering::AcqRel);
        Ok(ready.then_some(successor))
    }

    /// Whether a successor serves.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }
}
