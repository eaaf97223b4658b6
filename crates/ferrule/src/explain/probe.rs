//! Opens a connection to each chosen endpoint from here, and says which do not answer.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use super::answer::{Answer, State};

/// How long an endpoint may take to accept.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Endpoints that are tried at the same time.
const AT_ONCE: usize = 32;
/// Endpoints that are tried at all.
const MOST: usize = 256;

/// Tries the chosen TCP endpoints and adds what came of it. An endpoint that fails does not answer
/// from here; whether it does from elsewhere is not known.
pub fn probe(answer: &mut Answer) {
    let tcp = answer.ports.iter().filter(|port| port.protocol == "TCP");
    let chosen = tcp.flat_map(|port| port.endpoints.iter().filter(|endpoint| endpoint.chosen));
    let mut addresses: Vec<SocketAddr> = chosen
        .filter_map(|endpoint| endpoint.address.parse().ok())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        let line = "Probe: there is no chosen TCP endpoint to connect to.";
        answer.lines.push(line.to_owned());
        return;
    }
    let left_out = addresses.len().saturating_sub(MOST);
    addresses.truncate(MOST);
    let results = addresses.chunks(AT_ONCE).flat_map(connect_all);
    let failed: Vec<(SocketAddr, String)> = results
        .filter_map(|(address, result)| Some((address, failure(&result.err()?))))
        .collect();
    let tried = addresses.len();
    answer.lines.push(format!(
        "Probe: {} of {tried} chosen TCP endpoints accept a connection from here.",
        tried - failed.len()
    ));
    if left_out > 0 {
        answer
            .lines
            .push(format!("  {left_out} more were not tried"));
    }
    let lines = failed
        .iter()
        .map(|(address, why)| format!("  {address} {why}"));
    answer.lines.extend(lines);
    if !failed.is_empty() {
        let line = "To do: ask the endpoints that fail directly, from a client too; it is the Pod, a NetworkPolicy or the network plugin, not the Service.";
        answer.lines.push(line.to_owned());
        answer.state = match answer.state {
            _ if failed.len() == tried && left_out == 0 => State::Broken,
            State::Works => State::Partly,
            state => state,
        };
    }
}

fn connect_all(addresses: &[SocketAddr]) -> Vec<(SocketAddr, io::Result<()>)> {
    thread::scope(|scope| {
        let tries: Vec<_> = addresses
            .iter()
            .map(|address| {
                let connect = || TcpStream::connect_timeout(address, TIMEOUT).map(drop);
                (*address, scope.spawn(connect))
            })
            .collect();
        tries
            .into_iter()
            .map(|(address, handle)| {
                let result = handle.join();
                (
                    address,
                    result.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())),
                )
            })
            .collect()
    })
}

fn failure(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "refuses: nothing listens on that port of the Pod".to_owned()
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("stays silent for {} s", TIMEOUT.as_secs())
        }
        _ => format!("cannot be reached: {error}"),
    }
}
