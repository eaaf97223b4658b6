//! Notifies systemd that we are ready, where it asked for it.
//!
//! The protocol is one datagram to the socket named by `NOTIFY_SOCKET`; a name that begins with
//! `@` is abstract.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends one message, e.g. `READY=1`, to the socket of this name.
pub fn notify(socket: &str, message: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn sockets_in_the_file_system_are_notified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        notify(path.to_str().unwrap(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
    }

    #[test]
    fn abstract_sockets_are_notified() {
        let name = format!("ferrule-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        notify(&format!("@{name}"), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
    }

    #[test]
    fn a_socket_nobody_listens_on_is_an_error() {
        assert!(notify("/nowhere/at/all", "READY=1").is_err());
    }
}
