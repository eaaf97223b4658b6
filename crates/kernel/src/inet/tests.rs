//! Sockets on loopback, asked of the real kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::datagrams::Batch;
use super::pipe::Pipe;
use super::*;

const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(15),
};

/// Repeats what finds nothing yet.
fn soon<T>(mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..5000 {
        match what() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
    what()
}

/// Both ends of a connection: an ordinary one and one of ours.
fn connected() -> (TcpStream, OwnedFd) {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), KEEP_ALIVE).unwrap();
    let client = TcpStream::connect(local_address(&listener).unwrap()).unwrap();
    let (server, peer) = soon(|| accept(&listener)).unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

#[test]
fn addresses_survive_the_kernels_form() {
    for address in [
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 1)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 65_535)),
        SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 0, 3)),
    ] {
        let (storage, _) = sys::encode(address);
        assert_eq!(sys::decode(&storage).unwrap(), address);
    }
}

#[test]
fn a_connection_to_this_machine_is_there_at_once_and_one_to_nobody_never() {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), KEEP_ALIVE).unwrap();
    let client = stream(Family::V4, KEEP_ALIVE).unwrap();
    assert!(!is_connected(&client));
    connect(&client, local_address(&listener).unwrap()).unwrap();
    soon(|| {
        is_connected(&client)
            .then_some(())
            .ok_or(ErrorKind::WouldBlock.into())
    })
    .unwrap();
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let client = stream(Family::V4, KEEP_ALIVE).unwrap();
    connect(&client, nobody).unwrap();
    soon(|| match take_error(&client) {
        Ok(Some(_)) => Ok(()),
        _ => Err(ErrorKind::WouldBlock.into()),
    })
    .unwrap();
    assert!(!is_connected(&client));
}

#[test]
fn sockets_share_a_port_and_each_receives_from_its_own_peer_alone() {
    let peer = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (first, second, stranger) = (peer(), peer(), peer());
    let (held, port) = hold::shared_udp(Family::V4).unwrap();
    let sockets =
        [&first, &second].map(|peer| connect_datagrams(port, peer.local_addr().unwrap()).unwrap());
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    stranger.send_to(b"?", own).unwrap();
    for (peer, word) in [(&first, b"1"), (&second, b"2")] {
        peer.send_to(word, own).unwrap();
    }
    for (socket, word) in sockets.iter().zip([b"1", b"2"]) {
        let mut bytes = [0; 8];
        assert_eq!(soon(|| receive(socket, &mut bytes)).unwrap(), 1);
        assert_eq!(bytes[0], word[0]);
    }
    // Who does not share gets another port, also when nothing is connected from it.
    drop(sockets);
    assert!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_err());
    drop(held);
    drop(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
}

#[test]
fn usp_043_no_socket_waits_for_acknowledgements_and_all_keep_alive() {
    // One that was accepted inherits what was set on the listening one.
    let (_client, accepted) = connected();
    for socket in [accepted, stream(Family::V4, KEEP_ALIVE).unwrap()] {
        let option = |level, name| sys::option(&socket, level, name).unwrap();
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 15);
    }
}

#[test]
fn both_families_may_have_the_same_port() {
    let first = listen((Ipv4Addr::UNSPECIFIED, 0).into(), KEEP_ALIVE).unwrap();
    let port = local_address(&first).unwrap().port();
    match listen((Ipv6Addr::UNSPECIFIED, port).into(), KEEP_ALIVE) {
        Ok(_) => {}
        // A machine without IPv6 cannot show it.
        Err(error) => assert_ne!(error.kind(), ErrorKind::AddrInUse),
    }
}

#[test]
fn a_refused_connection_is_told_when_the_socket_is_asked() {
    let free = listen((Ipv4Addr::LOCALHOST, 0).into(), KEEP_ALIVE).unwrap();
    let address = local_address(&free).unwrap();
    drop(free);
    let refused = soon(|| {
        let socket = stream(Family::V4, KEEP_ALIVE)?;
        if let Err(error) = connect(&socket, address) {
            return Ok(error);
        }
        take_error(&socket)?.ok_or_else(|| ErrorKind::WouldBlock.into())
    });
    assert_eq!(refused.unwrap().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_reset_on_close_is_an_error_for_the_peer() {
    let (mut client, server) = connected();
    reset_on_close(&server).unwrap();
    drop(server);
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_that_no_rule_redirected_has_no_other_destination() {
    let (_client, server) = connected();
    let own = local_address(&server).unwrap();
    if let Ok(original) = original_destination(&server, Family::V4) {
        assert_eq!(original, own);
    }
}

#[test]
fn bytes_go_through_a_pipe_from_socket_to_socket() {
    let (mut sender, from) = connected();
    let (mut far, into) = connected();
    let pipe = Pipe::open(256 * 1024).unwrap();
    assert!(pipe.size() >= 4096);
    let nothing = pipe.fill(&from, 1000).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    sender.write_all(b"through").unwrap();
    let filled = soon(|| pipe.fill(&from, 1000)).unwrap();
    assert_eq!(filled, 7);
    assert_eq!(pipe.drain(&into, 7).unwrap(), 7);
    let mut arrived = [0; 7];
    far.read_exact(&mut arrived).unwrap();
    assert_eq!(&arrived, b"through");
    drop(sender);
    assert_eq!(soon(|| pipe.fill(&from, 1000)).unwrap(), 0);
}

#[test]
fn datagrams_say_where_they_arrived_and_leave_from_there() {
    for (wildcard, home) in [
        (
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::from([127, 0, 0, 9]),
        ),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    ] {
        let Ok(socket) = bind_datagrams((wildcard, 0).into()) else {
            assert!(wildcard.is_ipv6());
            continue;
        };
        let port = local_address(&socket).unwrap().port();
        let client = UdpSocket::bind((home, 0)).unwrap();
        client.connect((home, port)).unwrap();
        for bytes in [&b"one"[..], b"", b"three"] {
            client.send(bytes).unwrap();
        }
        let mut batch = Batch::new();
        assert_eq!(soon(|| batch.receive(&socket)).unwrap(), 3);
        assert_eq!(
            (batch.bytes(0), batch.bytes(1), batch.bytes(2)),
            (&b"one"[..], &b""[..], &b"three"[..])
        );
        let datagram = batch.get(2).unwrap();
        assert_eq!(datagram.peer, client.local_addr().unwrap());
        assert_eq!(datagram.local.unwrap().ip, home);
        let to = Some((datagram.peer, datagram.local));
        assert_eq!(batch.send(&socket, 0..3, to).unwrap(), 3);
        // Connected, so it only takes what comes from where it sent to.
        let mut reply = [0; 16];
        assert_eq!(client.recv(&mut reply).unwrap(), 3);
        assert_eq!(&reply[..3], b"one");
        assert!(batch.get(3).is_none());
    }
}

#[test]
fn exhaustion_is_told_from_other_failures() {
    assert!(is_exhausted(&io::Error::from_raw_os_error(libc::EMFILE)));
    assert!(!is_exhausted(&io::Error::from_raw_os_error(
        libc::ECONNREFUSED
    )));
}
