//! What a connection costs: to a Service in the middle of the cluster, and to its endpoint without
//! any Service.
//!
//! One client connects and hangs up, again and again. Both ways take turns, so that whatever else
//! the machine does falls on both.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use super::Figures;
use super::lane::{Lane, PORT};
use super::load::{cluster_ip, endpoint};
use super::spread::{Spread, middle};
use crate::os;

/// A turn is short enough that both ways see the same machine.
const TURN: u32 = 200;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Connects so many times each way.
pub fn connect(lane: &Lane, services: u32, count: u32) -> Result<Figures> {
    let service = SocketAddr::from((cluster_ip(services / 2), 80));
    let direct = SocketAddr::from((endpoint(services / 2, 0), PORT));
    let (mut through, mut beside) = (Way::default(), Way::default());
    lane.client.run(|| -> io::Result<()> {
        for _ in 0..count.div_ceil(TURN) {
            beside.turn(direct)?;
            through.turn(service)?;
        }
        Ok(())
    })??;
    if through.times.is_empty() {
        bail!("no connection was made");
    }
    let mut figures = Figures::new();
    figures.extend(through.figures(["connect p50", "connect p99", "connect rate"]));
    figures.extend(beside.figures(["direct p50", "direct p99", "direct rate"]));
    Ok(figures)
}

#[derive(Default)]
struct Way {
    times: Vec<Duration>,
    /// Connections per second in each turn. The middle of many short turns hardly notices when
    /// another process gets the processor for a while.
    rates: Vec<f64>,
}

impl Way {
    fn turn(&mut self, to: SocketAddr) -> io::Result<()> {
        let begun = os::now();
        for _ in 0..TURN {
            self.times.push(once(to)?);
        }
        self.rates
            .push(f64::from(TURN) / begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn figures(self, names: [&'static str; 3]) -> [(&'static str, f64); 3] {
        let rate = middle(self.rates).map_or(f64::NAN, |(middle, ..)| middle);
        let spread = Spread::new(self.times);
        let values = [spread.seconds(50), spread.seconds(99), rate];
        [0, 1, 2].map(|at| (names[at], values[at]))
    }
}

/// How long it takes until a connection is there.
fn once(to: SocketAddr) -> io::Result<Duration> {
    let begun: Instant = os::now();
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    let took = begun.elapsed();
    // Hanging up hard leaves no port behind that would have to wait for a minute.
    let hard = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &hard)?;
    Ok(took)
}
