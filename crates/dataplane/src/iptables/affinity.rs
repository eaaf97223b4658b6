//! With which endpoint the kernel remembers a client, by the lists that rules of iptables fill.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ferrule_core::model::{Port, PortKey};

use super::names::Names;
use crate::affinity::Binding;

/// Where the kernel shows these lists, in the network of the calling thread.
const LISTS: &str = "/proc/thread-self/net/xt_recent";

/// The endpoint of this Service port that the client is remembered with, if it is one of these.
///
/// # Errors
/// A list cannot be read.
pub fn binding(
    key: &PortKey,
    endpoints: &[(IpAddr, Port)],
    client: IpAddr,
) -> io::Result<Option<Binding>> {
    let names = Names::new(key);
    for (ip, port) in endpoints {
        let list = Path::new(LISTS).join(names.endpoint(*ip, *port).to_string());
        match std::fs::read_to_string(list) {
            Ok(text) if names_client(&text, client) => {
                return Ok(Some(Binding {
                    endpoint: (*ip, *port),
                    left: None,
                }));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a list has this client: `src=10.0.0.5 ttl: 64 last_seen: …`.
fn names_client(list: &str, client: IpAddr) -> bool {
    let sources = list.lines().filter_map(|line| line.strip_prefix("src="));
    let mut sources = sources.filter_map(|line| line.split(' ').next()?.parse::<IpAddr>().ok());
    sources.any(|source| source == client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_found_in_the_lists_of_both_families() {
        let list = "src=10.0.0.50 ttl: 64 last_seen: 4295 oldest_pkt: 1 4295\n\
                    src=fd00:0000:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 1 oldest_pkt: 1 1\n";
        assert!(names_client(list, "10.0.0.50".parse().unwrap()));
        assert!(names_client(list, "fd00::1".parse().unwrap()));
        assert!(!names_client(list, "10.0.0.5".parse().unwrap()));
    }
}
