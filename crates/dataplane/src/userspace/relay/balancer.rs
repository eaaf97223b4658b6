//! Chooses an endpoint for each new client of a Service port.
//!
//! In: the endpoints of each pool, who asks, when, and how earlier attempts went. Out: an endpoint.
//! Round robin over a random order; clients that must stay with their endpoint do; endpoints that
//! fail again and again are passed over.
//!
//! No clock and no chance of its own: both come in as arguments.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferrule_core::desired::Pool;

mod outlier;

use outlier::Outliers;

/// Clients whose endpoint is remembered, per Service port. Whoever has many addresses could
/// otherwise fill the memory of the node.
const MOST_CLIENTS: usize = 262_144;

/// The endpoints of a Service port and what is remembered of its clients.
#[derive(Debug, Default)]
pub(super) struct Balancer {
    cluster: Rotation,
    local: Rotation,
    affinity: Affinity,
    outliers: Outliers,
}

/// The endpoints of one pool, in the order in which they take their turns.
#[derive(Debug, Default)]
struct Rotation {
    order: Vec<SocketAddr>,
    next: usize,
}

/// Which client stays with which endpoint.
#[derive(Debug, Default)]
struct Affinity {
    time: Option<Duration>,
    clients: HashMap<IpAddr, Sticky>,
    /// How many there may be before those whose time is over are looked for.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sticky {
    endpoint: SocketAddr,
    used: Instant,
}

/// What one client's attempts have come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts<'a> {
    /// Endpoints that refused: not asked again.
    pub refused: &'a [SocketAddr],
    /// Endpoints that did not answer: asked again when there is no other.
    pub silent: &'a [SocketAddr],
}

impl Attempts<'_> {
    pub(super) const NONE: Attempts<'static> = Attempts {
        refused: &[],
        silent: &[],
    };

    fn include(&self, endpoint: &SocketAddr) -> bool {
        self.refused.contains(endpoint) || self.silent.contains(endpoint)
    }
}

impl Balancer {
    /// Adopts the endpoints of both pools. A pool with the same endpoints keeps its order and whose
    /// turn it is; another one is shuffled.
    pub(super) fn set(
        &mut self,
        cluster: &[SocketAddr],
        local: &[SocketAddr],
        affinity: Option<Duration>,
        seed: u64,
    ) {
        self.cluster.set(cluster, seed);
        self.local.set(local, seed.rotate_left(32));
        let serving: HashSet<SocketAddr> = cluster.iter().chain(local).copied().collect();
        self.outliers.retain(|endpoint| serving.contains(endpoint));
        self.affinity.time = affinity;
        if affinity.is_none() {
            self.affinity.clients = HashMap::new();
        } else {
            let clients = &mut self.affinity.clients;
            clients.retain(|_, sticky| serving.contains(&sticky.endpoint));
        }
    }

    /// Whose turn it is to serve this client; `None` when nobody is left.
    pub(super) fn pick(
        &mut self,
        pool: Pool,
        client: IpAddr,
        attempts: &Attempts<'_>,
        now: Instant,
    ) -> Option<SocketAddr> {
        let rotation = match pool {
            Pool::Cluster => &mut self.cluster,
            Pool::Local => &mut self.local,
        };
        let outliers = &mut self.outliers;
        if let Some(endpoint) = self.affinity.endpoint(client, now)
            && !attempts.include(&endpoint)
            && rotation.order.contains(&endpoint)
            && !outliers.passes_over(&endpoint, now)
        {
            return Some(endpoint);
        }
        rotation
            .take(|endpoint| !attempts.include(endpoint) && !outliers.passes_over(endpoint, now))
            .or_else(|| rotation.take(|endpoint| !attempts.include(endpoint)))
            .or_else(|| rotation.take(|endpoint| !attempts.refused.contains(endpoint)))
    }

    /// From now on the client stays with this endpoint, if clients do.
    pub(super) fn assign(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        self.affinity.record(client, endpoint, now);
    }

    /// This endpoint answered.
    pub(super) fn answered(&mut self, endpoint: &SocketAddr) {
        self.outliers.succeeded(endpoint);
    }

    /// This endpoint could not be connected to.
    pub(super) fn failed(&mut self, endpoint: SocketAddr, now: Instant) {
        let pools = [&self.cluster.order, &self.local.order].into_iter();
        let its = pools.filter(|order| order.contains(&endpoint));
        let pool = its.map(Vec::len).min().unwrap_or(0);
        self.outliers.failed(endpoint, pool, now);
    }

    /// How many endpoints are passed over.
    pub(super) fn ejected(&self, now: Instant) -> usize {
        self.outliers.ejected(now)
    }
}

impl Rotation {
    fn set(&mut self, endpoints: &[SocketAddr], seed: u64) {
        let mut sorted = endpoints.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut current = self.order.clone();
        current.sort_unstable();
        if sorted != current {
            shuffle(&mut sorted, seed);
            self.order = sorted;
            self.next = 0;
        }
    }

    /// The next one for which that holds; its successor is next.
    fn take(&mut self, mut suits: impl FnMut(&SocketAddr) -> bool) -> Option<SocketAddr> {
        let len = self.order.len();
        let at = (0..len)
            .map(|step| (self.next + step) % len)
            .find(|&at| suits(&self.order[at]))?;
        self.next = (at + 1) % len;
        Some(self.order[at])
    }
}

impl Affinity {
    fn endpoint(&self, client: IpAddr, now: Instant) -> Option<SocketAddr> {
        let sticky = self.clients.get(&client)?;
        self.is_fresh(sticky, now).then_some(sticky.endpoint)
    }

    fn is_fresh(&self, sticky: &Sticky, now: Instant) -> bool {
        self.time
            .is_some_and(|time| now.saturating_duration_since(sticky.used) < time)
    }

    fn record(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        if self.time.is_none() {
            return;
        }
        let sticky = Sticky {
            endpoint,
            used: now,
        };
        self.clients.insert(client, sticky);
        if self.clients.len() > self.sweep_at.clamp(64, MOST_CLIENTS) {
            self.sweep(now);
        }
    }

    /// Forgets clients whose time is over, and the longest absent half if there are still too many.
    /// Between two sweeps the number doubles, so a client's share of the cost is constant.
    fn sweep(&mut self, now: Instant) {
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain(|_, sticky| self.is_fresh(sticky, now));
        if clients.len() >= MOST_CLIENTS {
            let mut times: Vec<Instant> = clients.values().map(|sticky| sticky.used).collect();
            let middle = times.len() / 2;
            let (_, median, _) = times.select_nth_unstable(middle);
            let median = *median;
            clients.retain(|_, sticky| sticky.used > median);
        }
        self.sweep_at = clients.len() * 2;
        self.clients = clients;
    }
}

/// Fisher and Yates, with numbers that follow from the seed.
fn shuffle(endpoints: &mut [SocketAddr], seed: u64) {
    let mut state = seed;
    for last in (1..endpoints.len()).rev() {
        let bound = u64::try_from(last).unwrap_or(u64::MAX).saturating_add(1);
        let pick = usize::try_from(splitmix(&mut state) % bound).unwrap_or(0);
        endpoints.swap(last, pick);
    }
}

/// The next number of a well-mixed sequence.
pub(super) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
