//! The addresses of this machine's interfaces, and their changes. Those that mode ipvs gives an
//! interface of its own are not the machine's: they belong to Services.
//!
//! Read once, then kept up to date by the kernel's notifications: nobody else lists interfaces.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ferrule_kernel::route::{Event, Route, Watch};

use crate::{ipvs, said};

/// What is known of the addresses.
#[derive(Debug)]
pub struct Addresses {
    watch: Watch,
    known: Known,
    links: Links,
    /// They must be read again: something was missed, or one of several alike is gone.
    stale: bool,
    /// What was reported last.
    reported: Vec<IpAddr>,
    read: fn() -> io::Result<(Links, Known)>,
}

/// Addresses with the number of their interface: two may have the same one.
type Known = BTreeSet<(IpAddr, u32)>;

impl Addresses {
    /// Reads all addresses in the network namespace of the calling thread, and listens to changes
    /// from then on.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open() -> io::Result<Self> {
        // First: what changes while they are read is in one of the two.
        let watch = Watch::addresses()?;
        let (links, known) = read()?;
        let mut addresses = Self {
            watch,
            known,
            links,
            stale: false,
            reported: Vec::new(),
            read,
        };
        addresses.reported = addresses.list();
        Ok(addresses)
    }

    /// The addresses, each once, sorted.
    pub fn list(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.known.iter().map(|(ip, _)| *ip).collect();
        all.dedup();
        all
    }

    /// Waits for a change, at most for this long; whether there was one.
    ///
    /// # Errors
    /// What the kernel said. What was known is still known.
    pub fn changed(&mut self, timeout: Duration) -> io::Result<bool> {
        let timeout = if self.stale { Duration::ZERO } else { timeout };
        for event in self.watch.next(timeout)? {
            match event {
                Event::Address(new) => match self.links.is_of_services(new.link) {
                    Ok(true) => {}
                    Ok(false) => drop(self.known.insert((new.address, new.link))),
                    Err(_) => self.stale = true,
                },
                Event::AddressGone(gone) if self.links.of_services == Some(gone.link) => {}
                // An interface may have it once more, with another prefix or another peer.
                Event::AddressGone(_) | Event::Missed => self.stale = true,
                Event::Link(_) | Event::LinkGone(_) => {}
            }
        }
        if self.stale {
            (self.links, self.known) = (self.read)()?;
            self.stale = false;
        }
        let now = self.list();
        let changed = now != self.reported;
        self.reported = now;
        Ok(changed)
    }
}

fn read() -> io::Result<(Links, Known)> {
    let links = Links::read()?;
    let all = Route::open()?.addresses().map_err(said)?;
    let all = all.iter().map(|one| (one.address, one.link));
    let own = all.filter(|(_, link)| links.of_services != Some(*link));
    let own = own.collect();
    Ok((links, own))
}

/// Which interface has addresses of Services.
#[derive(Debug, Default)]
struct Links {
    of_services: Option<u32>,
    others: BTreeSet<u32>,
}

impl Links {
    fn read() -> io::Result<Self> {
        let mut links = Self::default();
        for link in Route::open()?.links().map_err(said)? {
            if link.name == ipvs::LINK {
                links.of_services = Some(link.index);
            } else {
                links.others.insert(link.index);
            }
        }
        Ok(links)
    }

    /// Whether this is it. One that is not known is new.
    fn is_of_services(&mut self, link: u32) -> io::Result<bool> {
        if self.of_services != Some(link) && !self.others.contains(&link) {
            *self = Self::read()?;
        }
        Ok(self.of_services == Some(link))
    }
}

#[cfg(test)]
mod tests {
    use ferrule_testbed::{in_namespace, run};

    use super::*;

    #[test]
    fn addresses_are_read_once_and_followed() {
        in_namespace(|| {
            let mut addresses = Addresses::open().unwrap();
            assert!(addresses.list().iter().any(IpAddr::is_loopback));
            let added: IpAddr = "192.0.2.7".parse().unwrap();
            assert!(!addresses.list().contains(&added));
            let change = |action| {
                run("ip", &["address", action, "192.0.2.7/32", "dev", "lo"]);
            };
            // What happened before may come one by one.
            let follow = |addresses: &mut Addresses, there: bool| {
                for _ in 0..100 {
                    addresses.changed(Duration::from_millis(100)).unwrap();
                    if addresses.list().contains(&added) == there {
                        return;
                    }
                }
                panic!("never: {:?}", addresses.list());
            };
            change("add");
            follow(&mut addresses, true);
            assert!(!addresses.changed(Duration::from_millis(20)).unwrap());
            // Addresses of Services.
            run("ip", &["link", "add", ipvs::LINK, "type", "veth"]);
            run("ip", &["address", "add", "192.0.2.8/32", "dev", ipvs::LINK]);
            assert!(!addresses.changed(Duration::from_millis(20)).unwrap());
            assert_eq!(Addresses::open().unwrap().list(), addresses.list());
            change("delete");
            follow(&mut addresses, false);
        });
    }

    #[test]
    fn addresses_that_cannot_be_listed_stay_as_they_were_known_and_are_listed_again() {
        in_namespace(|| {
            let address: IpAddr = "192.0.2.7".parse().unwrap();
            run("ip", &["address", "add", "192.0.2.7/32", "dev", "lo"]);
            let mut addresses = Addresses::open().unwrap();
            addresses.read = || Err(io::ErrorKind::OutOfMemory.into());
            run("ip", &["address", "delete", "192.0.2.7/32", "dev", "lo"]);
            let mut outcomes = (0..100).map(|_| addresses.changed(Duration::from_millis(100)));
            assert!(outcomes.any(|outcome| outcome.is_err()), "it is listed");
            assert!(
                addresses.changed(Duration::ZERO).is_err(),
                "as long as it fails"
            );
            assert!(addresses.list().contains(&address));
            addresses.read = read;
            assert!(addresses.changed(Duration::ZERO).unwrap());
            assert!(!addresses.list().contains(&address));
        });
    }
}
