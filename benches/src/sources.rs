//! Source ranges of load balancers: many at one Service, and a few at many, in the real kernel.
//!
//! What a tenant can write must cost in proportion, and others must not pay for it. So beside the
//! whole and one changed range there is a changed endpoint of a Service next to them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime};

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::issue::Kind;
use ferrule_core::model::{Family, Service};
use ferrule_core::track::{Event, Object, Tracker};
use ferrule_dataplane::nftables::{Nftables, Options};
use ferrule_dataplane::{Dataplane, Scope};
use ferrule_kernel::netns;
use ferrule_kernel::socket::Transport;
use ipnet::IpNet;

use crate::cluster::{ENDPOINTS, put, service, slice_with};
use crate::nftables::{Outcome, both, program, settle, stopped};
use crate::spread::{Spread, human};

/// How much is measured.
pub struct Extent {
    /// Services, and the ranges of each.
    pub sizes: &'static [(u32, u32)],
    /// How often everything is programmed.
    pub wholes: u32,
    /// How many changes are made.
    pub changes: u32,
}

/// Prints the table.
pub fn run(extent: &Extent) -> Outcome<()> {
    println!(
        "Source ranges, {} runs, {} changes; median (least–most), processor time of the first:\n",
        extent.wholes, extent.changes
    );
    println!(
        "| Services × ranges | everything | its processor time | one range | one endpoint | \
         start over unchanged rules | writes |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for &(services, ranges) in extent.sizes {
        let mut dataplane = netns::isolated(|| Nftables::open(Family::V4, Options::default()))??;
        let mut cluster = Guarded::new(services, ranges);
        let mut wholes = Vec::new();
        for run in 0..extent.wholes {
            if run > 0 {
                dataplane.remove()?;
                settle(services * ranges);
            }
            wholes.push(stopped(|| {
                program(&mut dataplane, &cluster.desired, Scope::Full).map(drop)
            })?);
        }
        let (wholes, worked) = both(wholes);
        let ranges_changed = (0..extent.changes)
            .map(|turn| cluster.change_range(turn, &mut dataplane))
            .collect::<Outcome<Vec<_>>>()?;
        let endpoints_changed = (0..extent.changes)
            .map(|turn| cluster.change_endpoint(turn, &mut dataplane))
            .collect::<Outcome<Vec<_>>>()?;
        // What the changes left over goes first.
        program(&mut dataplane, &cluster.desired, Scope::Full)?;
        let start = Instant::now();
        let writes = program(&mut dataplane, &cluster.desired, Scope::Full)?;
        println!(
            "| {services} × {ranges} | {wholes} | {} | {} | {} | {} | {writes} |",
            human(worked.median()),
            Spread::new(ranges_changed),
            Spread::new(endpoints_changed),
            human(start.elapsed()),
        );
    }
    Ok(())
}

/// Services with load balancer addresses that not everybody may use.
pub struct Guarded {
    tracker: Tracker,
    /// What follows from them.
    pub desired: Desired,
    services: u32,
    ranges: u32,
}

impl Guarded {
    /// Complete first lists.
    pub fn new(services: u32, ranges: u32) -> Self {
        let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
        for kind in Kind::ALL {
            tracker.on(Event::Listing(kind));
        }
        for n in 0..services {
            tracker.on(put(Object::Service(guarded(n, ranges, None))));
            tracker.on(put(Object::Slice(slice_with(n, 0, ENDPOINTS))));
        }
        for kind in Kind::ALL {
            tracker.on(Event::Listed(kind));
        }
        let changes = tracker.take().expect("the first lists are complete");
        let mut desired = Desired::new(Settings::default());
        desired.update(&tracker, changes);
        Self {
            tracker,
            desired,
            services,
            ranges,
        }
    }

    /// Another range in the place of one, from event to commit.
    pub fn change_range<T: Transport + Send>(
        &mut self,
        turn: u32,
        dataplane: &mut Nftables<T>,
    ) -> Outcome<Duration> {
        let (round, n) = (turn / self.services, turn % self.services);
        let service = guarded(n, self.ranges, Some(round));
        self.receive(Object::Service(service), dataplane)
    }

    fn change_endpoint(&mut self, turn: u32, dataplane: &mut Nftables) -> Outcome<Duration> {
        let slice = slice_with(turn % self.services, 2 + turn, ENDPOINTS);
        self.receive(Object::Slice(slice), dataplane)
    }

    fn receive<T: Transport + Send>(
        &mut self,
        object: Object,
        dataplane: &mut Nftables<T>,
    ) -> Outcome<Duration> {
        let event = put(object);
        let start = Instant::now();
        self.tracker.on(event);
        if let Some(changes) = self.tracker.take() {
            let delta = self.desired.update(&self.tracker, changes);
            let scope = Scope::Delta(&delta.families[Family::V4]);
            program(dataplane, &self.desired, scope)?;
        }
        Ok(start.elapsed())
    }
}

/// Service number `n` with a load balancer address and so many ranges that do not touch; one of them
/// is another one in every edition.
fn guarded(n: u32, ranges: u32, edition: Option<u32>) -> Service {
    let address = |a, b, n| {
        let base = u32::from(Ipv4Addr::new(a, b, 0, 0));
        IpAddr::V4(Ipv4Addr::from(base + n))
    };
    let net = |ip, bits| IpNet::new_assert(ip, bits);
    let mut source_ranges: Vec<_> = (0..ranges)
        .map(|i| net(address(20, 0, 4 * i), 31))
        .collect();
    if let Some(edition) = edition {
        let at = edition.wrapping_mul(0x9e37_79b9) % ranges;
        let bits = if edition % 2 == 0 { 31 } else { 32 };
        source_ranges[at as usize] = net(address(20, 0, 4 * at + 2), bits);
    }
    Service {
        source_ranges: source_ranges.into(),
        ..service(n).load_balancer(&[address(203, 0, n)])
    }
}
