//! Sockets that one process hands to the next, so that a restart refuses nobody.
//!
//! ```text
//! successor                            predecessor
//!   connects: "ferrule handover 1"  ─►  changes nothing from now on
//!   opens what it needs             ◄─  its sockets, which it goes on serving, and "all"
//!   programs rules of its own
//!   "taken"                         ─►  withdraws its rules, then its sockets
//!   listens for a successor         ◄─  "left"; its connections go on to their end
//! ```
//!
//! Both listen on the same sockets meanwhile, so no connection finds nobody.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ferrule_core::model::{Family, Port, PortKey, Protocol, ServiceKey};
use ferrule_kernel::passing;

use super::claims::Claim;
use super::relay::{Class, Key};

/// Said first, so that another version knows whether it can go on.
const HELLO: &[u8] = b"ferrule handover 1";
const ALL: &[u8] = b"all";
const TAKEN: &[u8] = b"taken";
const LEFT: &[u8] = b"left";

/// How long either side waits for the other.
const TIMEOUT: Duration = Duration::from_mins(1);

/// What a socket is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Clients connect to it.
    Lane(Key, Class),
    /// It holds a port of the node.
    Claim(Family, Claim),
}

/// What came from a predecessor and is not used yet.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: BTreeMap<Purpose, OwnedFd>,
    stream: Option<UnixStream>,
}

impl Inherited {
    /// Asks the predecessor that listens there for its sockets. Where nobody listens there are none.
    ///
    /// # Errors
    /// Somebody listens, and it cannot be done.
    pub fn receive(path: &Path) -> io::Result<Self> {
        let stream = match UnixStream::connect(path) {
            Err(error) if is_nobody(&error) => return Ok(Self::default()),
            result => trusted(result?)?,
        };
        passing::send(&stream, HELLO, None)?;
        let mut sockets = BTreeMap::new();
        loop {
            match passing::receive(&stream)? {
                None => return Err(ErrorKind::UnexpectedEof.into()),
                Some((message, _)) if message == ALL => break,
                Some((message, Some(socket))) => {
                    // Another version may have what this one does not know.
                    if let Some(purpose) = decode(&message) {
                        sockets.insert(purpose, socket);
                    }
                }
                Some((_, None)) => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(Self {
            sockets,
            stream: Some(stream),
        })
    }

    /// The socket for this purpose.
    pub fn take(&mut self, purpose: &Purpose) -> Option<OwnedFd> {
        self.sockets.remove(purpose)
    }

    /// Has the predecessor leave, and closes what nobody used. Returns whether there was one.
    ///
    /// # Errors
    /// It did not say that it left.
    pub fn settle(self) -> io::Result<bool> {
        drop(self.sockets);
        let Some(stream) = self.stream else {
            return Ok(false);
        };
        passing::send(&stream, TAKEN, None)?;
        match passing::receive(&stream)? {
            Some((message, _)) if message == LEFT => Ok(true),
            Some(_) => Err(ErrorKind::InvalidData.into()),
            // It ended meanwhile, and its rules with it.
            None => Ok(true),
        }
    }
}

/// Listens for a successor, in place of whoever listened there before.
///
/// # Errors
/// What the kernel said.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut own = path.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let own = Path::new(&own);
    match fs::remove_file(own) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(own)?;
    fs::set_permissions(own, fs::Permissions::from_mode(0o600))?;
    fs::rename(own, path)?;
    Ok(listener)
}

/// A successor that has asked for sockets.
#[derive(Debug)]
pub struct Successor(UnixStream);

impl Successor {
    /// Waits for the next one.
    ///
    /// # Errors
    /// What the kernel said; `PermissionDenied` when it is of another user; `InvalidData` when it is
    /// no successor.
    pub fn accept(listener: &UnixListener) -> io::Result<Self> {
        let (stream, _) = listener.accept()?;
        let stream = trusted(stream)?;
        match passing::receive(&stream)? {
            Some((message, _)) if message == HELLO => Ok(Self(stream)),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Gives it these sockets, and waits until it is ready to go on alone. Returns whether it is.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn give(&self, sockets: &[(Purpose, OwnedFd)]) -> io::Result<bool> {
        for (purpose, socket) in sockets {
            passing::send(&self.0, &encode(purpose), Some(socket.as_fd()))?;
        }
        passing::send(&self.0, ALL, None)?;
        Ok(passing::receive(&self.0)?.is_some_and(|(message, _)| message == TAKEN))
    }

    /// Says that everything is left to it.
    pub fn leave(self) {
        // If it is gone, no one is left to notify.
        drop(passing::send(&self.0, LEFT, None));
    }
}

/// A connection to a process of the same user, which does not wait for ever.
fn trusted(stream: UnixStream) -> io::Result<UnixStream> {
    if passing::peer_user(&stream)? != passing::own_user() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn is_nobody(error: &io::Error) -> bool {
    [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind())
}

/// One field per line: no name in Kubernetes has line breaks.
fn encode(purpose: &Purpose) -> Vec<u8> {
    let text = match purpose {
        Purpose::Lane(key, class) => {
            let PortKey {
                service,
                name,
                protocol,
            } = &key.port;
            let class = match class {
                Class::Internal => "internal",
                Class::External => "external",
            };
            let family = key.family.as_str();
            let (namespace, service) = (service.namespace(), service.name());
            format!("lane\n{family}\n{protocol}\n{class}\n{namespace}\n{service}\n{name}")
        }
        Purpose::Claim(family, claim) => {
            let Claim { ip, protocol, port } = claim;
            let ip = ip.map_or_else(|| "*".to_owned(), |ip| ip.to_string());
            let family = family.as_str();
            format!("claim\n{family}\n{protocol}\n{ip}\n{port}")
        }
    };
    text.into_bytes()
}

fn decode(message: &[u8]) -> Option<Purpose> {
    let text = std::str::from_utf8(message).ok()?;
    let mut fields = text.split('\n');
    let kind = fields.next()?;
    let family = fields.next()?;
    let family = Family::ALL.into_iter().find(|one| one.as_str() == family)?;
    let protocol = fields.next()?;
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols
        .into_iter()
        .find(|one| one.to_string() == protocol)?;
    match kind {
        "lane" => {
            let class = match fields.next()? {
                "internal" => Class::Internal,
                "external" => Class::External,
                _ => return None,
            };
            let service = ServiceKey::new(fields.next()?, fields.next()?);
            let port = PortKey {
                service,
                name: fields.next()?.into(),
                protocol,
            };
            Some(Purpose::Lane(Key { port, family }, class))
        }
        "claim" => {
            let ip = match fields.next()? {
                "*" => None,
                ip => Some(ip.parse::<IpAddr>().ok()?),
            };
            let port = Port::new(fields.next()?.parse().ok()?)?;
            Some(Purpose::Claim(family, Claim { ip, protocol, port }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn lane(name: &str) -> Purpose {
        let port = PortKey {
            service: ServiceKey::new("shop", name),
            name: "".into(),
            protocol: Protocol::Udp,
        };
        let family = Family::V6;
        Purpose::Lane(Key { port, family }, Class::External)
    }

    fn claim(ip: Option<&str>) -> Purpose {
        let claim = Claim {
            ip: ip.map(|ip| ip.parse().unwrap()),
            protocol: Protocol::Tcp,
            port: Port::new(30080).unwrap(),
        };
        Purpose::Claim(Family::V4, claim)
    }

    fn socket() -> OwnedFd {
        TcpListener::bind("127.0.0.1:0").unwrap().into()
    }

    #[test]
    fn what_a_socket_is_for_survives_the_way() {
        for purpose in [lane("a"), claim(None), claim(Some("192.0.2.1"))] {
            assert_eq!(decode(&encode(&purpose)), Some(purpose));
        }
        for unknown in [
            &b""[..],
            b"lane",
            b"star\nIPv4\nTCP\nx",
            b"\xff",
            b"claim\nIPv4\nTCP\n*\n0",
        ] {
            assert_eq!(decode(unknown), None);
        }
    }

    #[test]
    fn where_nobody_listens_nothing_is_inherited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(!Inherited::receive(&path).unwrap().settle().unwrap());
        // Left by a process that crashed.
        drop(listen(&path).unwrap());
        assert!(!Inherited::receive(&path).unwrap().settle().unwrap());
    }

    #[test]
    fn sockets_go_to_a_successor_and_the_predecessor_leaves_when_it_is_ready() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new folder/socket");
        let listener = listen(&path).unwrap();
        let predecessor = std::thread::spawn(move || {
            let successor = Successor::accept(&listener).unwrap();
            let sockets = [(lane("a"), socket()), (claim(None), socket())];
            assert!(successor.give(&sockets).unwrap());
            successor.leave();
        });
        let mut inherited = Inherited::receive(&path).unwrap();
        assert!(inherited.take(&lane("b")).is_none());
        assert!(inherited.take(&lane("a")).is_some());
        assert!(inherited.take(&lane("a")).is_none(), "once");
        // The next one listens before it says so.
        let _listener = listen(&path).unwrap();
        assert!(inherited.settle().unwrap());
        predecessor.join().unwrap();
    }

    #[test]
    fn a_successor_that_fails_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = listen(&path).unwrap();
        let successor = std::thread::spawn({
            let path = path.clone();
            move || drop(Inherited::receive(&path).unwrap())
        });
        let asked = Successor::accept(&listener).unwrap();
        assert!(!asked.give(&[(lane("a"), socket())]).unwrap());
        successor.join().unwrap();
        // Nor does one that does not speak as we do.
        drop(UnixStream::connect(&path).unwrap());
        let error = Successor::accept(&listener).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
