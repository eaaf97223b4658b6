//! Datagrams of more clients than there are ports or descriptors.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Class, Listen, Options, UdpIdle};
use ferrule_testbed::in_namespace;

use crate::memory::plenty;
use crate::support::{LOCALHOST, Scene, backends, exchange, key, options, udp_client, udp_named};

/// Datagrams that are on their way at most: fewer than any socket holds.
const IN_FLIGHT: usize = 64;

/// A client that nobody else is, on a port that the kernel chooses for nobody.
fn client(number: usize) -> UdpSocket {
    const PORTS: usize = 10_000;
    let net = u8::try_from(1 + number / PORTS).unwrap();
    let port = u16::try_from(2_000 + number % PORTS).unwrap();
    UdpSocket::bind((Ipv4Addr::new(127, 0, net, 1), port)).unwrap()
}

/// An endpoint that keeps silent until it has heard so many clients, and then answers all of them.
struct Late {
    address: SocketAddr,
    thread: JoinHandle<(UdpSocket, Vec<SocketAddr>)>,
}

impl Late {
    fn start(received: &Arc<AtomicUsize>) -> Self {
        let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let received = Arc::clone(received);
        let thread = std::thread::spawn(move || {
            let mut clients = Vec::new();
            let mut buffer = [0; 16];
            loop {
                let (len, peer) = socket.recv_from(&mut buffer).unwrap();
                if &buffer[..len] == b"end" {
                    return (socket, clients);
                }
                clients.push(peer);
                received.fetch_add(1, Ordering::Release);
            }
        });
        Self { address, thread }
    }
}

fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never");
}

#[test]
fn usp_046_fifty_thousand_associations_live_side_by_side_and_each_ends() {
    const ENDPOINTS: usize = 4;
    in_namespace(|| {
        // A descriptor each, and one for each port that they share.
        let clients = (plenty().saturating_sub(5_000) * 2 / 3).min(50_000);
        assert!(clients >= 1_000, "too few descriptors");
        let options = Options {
            udp_idle: UdpIdle {
                unreplied: Duration::from_hours(1),
                replied: Duration::from_secs(1),
            },
            // All may belong to one Service port here.
            descriptors: Some(1 << 20),
            ..options()
        };
        let received = Arc::new(AtomicUsize::new(0));
        let endpoints: Vec<_> = (0..ENDPOINTS).map(|_| Late::start(&received)).collect();
        let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let scene = Scene::new(options, Protocol::Udp, backends(&addresses));
        for number in 0..clients {
            client(number).send_to(b"x", scene.address).unwrap();
            if number % IN_FLIGHT == 0 {
                wait_until(|| received.load(Ordering::Acquire) == number + 1);
            }
        }
        wait_until(|| received.load(Ordering::Acquire) == clients);
        let stats = scene.stats();
        assert_eq!(stats.associations, clients);
        assert_eq!((stats.evicted, stats.dropped_datagrams), (0, 0));
        // The kernel still has ports for others.
        drop(
            (0..100)
                .map(|_| udp_client(scene.address))
                .collect::<Vec<_>>(),
        );
        // Each is idle for a second after its reply, and ends.
        let speaker = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        for Late { address, thread } in endpoints {
            speaker.send_to(b"end", address).unwrap();
            let (socket, peers) = thread.join().unwrap();
            let distinct: BTreeSet<_> = peers.iter().collect();
            assert_eq!(distinct.len(), peers.len(), "two clients share a port");
            for peer in peers {
                socket.send_to(b"y", peer).unwrap();
            }
        }
        scene.until("all end", |stats| stats.associations == 0);
        assert_eq!(scene.stats().associated, u64::try_from(clients).unwrap());
    });
}

#[test]
fn a_flood_from_many_sources_takes_few_ports_and_leaves_others_alone() {
    const PORTS: usize = 8;
    const FLOOD: usize = 500;
    in_namespace(|| {
        let options = Options {
            local_ports: Some(PORTS),
            ..options()
        };
        let (flooded, other) = (udp_named(), udp_named());
        let scene = Scene::new(options, Protocol::Udp, backends(&[flooded]));
        let second = key("other", Protocol::Udp);
        let listen = Listen::at(LOCALHOST);
        let port = scene.relay.open(&second, Class::Internal, listen).unwrap();
        scene.relay.set(&second, backends(&[other]));
        let beside = udp_client(SocketAddr::new(LOCALHOST, port));
        let name = |endpoint: SocketAddr| endpoint.port().to_string().into_bytes();
        assert_eq!(exchange(&beside, b"x"), name(other));
        for number in 0..FLOOD {
            let client = client(number);
            client.connect(scene.address).unwrap();
            // Each is served: the idlest made room.
            client.set_read_timeout(Some(crate::support::LONG)).unwrap();
            assert_eq!(exchange(&client, b"x"), name(flooded));
        }
        let stats = scene.stats();
        assert_eq!(stats.associated, FLOOD as u64);
        assert!(stats.evicted >= (FLOOD - PORTS) as u64, "{stats:?}");
        assert!(stats.associations <= PORTS, "{stats:?}");
        // The other Service's client never noticed.
        assert_eq!(exchange(&beside, b"x"), name(other));
        let others = &scene.relay.stats()[&second];
        assert_eq!((others.associated, others.evicted), (1, 0));
    });
}

#[test]
fn what_a_stranger_sends_to_a_shared_port_reaches_no_client() {
    in_namespace(|| {
        let scene = Scene::udp(&[udp_named()]);
        let client = udp_client(scene.address);
        let expected = exchange(&client, b"x");
        // The port that the relay sends from is found as an endpoint sees it.
        let stranger = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        for port in ephemeral() {
            let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
            if to != scene.address && Some(to) != client.local_addr().ok() {
                _ = stranger.send_to(b"forged", to);
            }
        }
        assert_eq!(exchange(&client, b"x"), expected);
    });
}

/// The ports that the kernel chooses from.
fn ephemeral() -> std::ops::RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let mut ends = text.split_whitespace().map(|end| end.parse().unwrap());
    ends.next().unwrap()..=ends.next().unwrap()
}
