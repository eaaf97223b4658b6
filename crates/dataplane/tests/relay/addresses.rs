//! Clients whom rules redirect, those whom no rule redirects, and which address each asked for.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use ferrule_core::desired::Pool;
use ferrule_core::model::{Family, Protocol};
use ferrule_dataplane::userspace::relay::{Backends, Class, Key, Listen, Options, Route, Sources};
use ferrule_testbed::{in_namespace, run};

use crate::support::{
    LONG, Scene, backends, endpoint, key, named, options, outcome, start, udp_named,
};

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const CLUSTER_IP: &str = "10.96.0.1:80";
const BALANCER_IP: &str = "10.96.0.2:80";

/// A relay that only serves whom rules redirect, in a network with an address.
fn scene(protocol: Protocol, backends: Backends) -> Scene {
    for line in [
        "link add v0 type veth peer name v1",
        "address add 10.9.0.1/24 dev v0",
        "link set v0 up",
        "link set v1 up",
        "route add default dev v0",
    ] {
        run("ip", &line.split(' ').collect::<Vec<_>>());
    }
    let relay = start(Options {
        workers: 2,
        ..Options::default()
    });
    let key = key("n", protocol);
    let port = relay.open(&key, Class::External, Listen::at(ANY)).unwrap();
    relay.set(&key, backends);
    Scene {
        relay,
        key,
        address: SocketAddr::new(IpAddr::from([10, 9, 0, 1]), port),
    }
}

/// Leads from these addresses to that one.
fn redirect(protocol: &str, from: &[&str], to: &str) {
    for address in from {
        let address: SocketAddr = address.parse().unwrap();
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let head = ["-w", "-t", "nat", "-A", "OUTPUT", "-d", &ip, "-p", protocol];
        let tail = ["--dport", &port, "-j", "DNAT", "--to-destination", to];
        run("iptables", &[&head[..], &tail].concat());
    }
}

fn client(to: &str) -> TcpStream {
    let client = TcpStream::connect(to).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

#[test]
fn usp_060_connections_to_the_proxy_port_itself_are_reset() {
    in_namespace(|| {
        let server = named();
        let scene = scene(Protocol::Tcp, backends(&[server]));
        redirect("tcp", &[CLUSTER_IP], &scene.address.to_string());
        let answer = outcome(client(CLUSTER_IP)).unwrap();
        assert_eq!(answer, server.port().to_string().into_bytes());
        let direct = client(&scene.address.to_string());
        assert_eq!(outcome(direct), Err(ErrorKind::ConnectionReset));
        let loopback = client(&format!("127.0.0.1:{}", scene.address.port()));
        assert_eq!(outcome(loopback), Err(ErrorKind::ConnectionReset));
        let stats = &scene.stats().lanes[&Class::External];
        assert_eq!((stats.accepted, stats.denied), (3, 2));
    });
}

#[test]
fn usp_060_without_any_rules_connections_are_reset() {
    in_namespace(|| {
        let scene = scene(Protocol::Tcp, backends(&[named()]));
        let direct = client(&scene.address.to_string());
        assert_eq!(outcome(direct), Err(ErrorKind::ConnectionReset));
    });
}

#[test]
fn usp_059_source_ranges_bind_only_the_addresses_they_are_for() {
    in_namespace(|| {
        let from = |net: &str| Sources {
            to: vec![IpAddr::from([10, 96, 0, 2])],
            from: vec![net.parse().unwrap()],
        };
        let server = named();
        let limited = |net| Backends {
            sources: vec![from(net)],
            ..backends(&[server])
        };
        let scene = scene(Protocol::Tcp, limited("192.0.2.0/24"));
        redirect(
            "tcp",
            &[CLUSTER_IP, BALANCER_IP],
            &scene.address.to_string(),
        );
        assert!(outcome(client(CLUSTER_IP)).is_ok());
        let forbidden = outcome(client(BALANCER_IP));
        assert_eq!(forbidden, Err(ErrorKind::ConnectionReset));
        scene.set(limited("10.9.0.0/24"));
        assert!(outcome(client(BALANCER_IP)).is_ok());
    });
}

#[test]
fn an_endpoint_can_be_told_who_its_client_is_and_what_it_asked_for() {
    in_namespace(|| {
        let server = endpoint(|mut stream| {
            let mut header = [0; 28];
            stream.read_exact(&mut header).unwrap();
            drop(stream.write_all(&header));
        });
        let telling = Backends {
            proxy_header: true,
            external: Route::all(Pool::Cluster),
            ..backends(&[server])
        };
        let scene = scene(Protocol::Tcp, telling);
        redirect("tcp", &[CLUSTER_IP], &scene.address.to_string());
        let client = client(CLUSTER_IP);
        let own = client.local_addr().unwrap().port();
        let header = outcome(client).unwrap();
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        expected.extend([10, 9, 0, 1, 10, 96, 0, 1]);
        expected.extend(own.to_be_bytes());
        expected.extend(80_u16.to_be_bytes());
        assert_eq!(header, expected);
    });
}

#[test]
fn udp_replies_leave_from_the_address_that_datagrams_were_led_to() {
    in_namespace(|| {
        let server = udp_named();
        let scene = scene(Protocol::Udp, backends(&[server]));
        // Not the address that routes would choose, so that only the right one is translated back.
        run("ip", &["address", "add", "10.9.0.77/32", "dev", "v0"]);
        let port = scene.address.port();
        redirect("udp", &["10.96.0.1:53"], &format!("10.9.0.77:{port}"));
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect("10.96.0.1:53").unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let reply = crate::support::exchange(&client, b"who");
        assert_eq!(reply, server.port().to_string().into_bytes());
    });
}

#[test]
fn ipv6_is_relayed_like_ipv4() {
    in_namespace(|| {
        let home = IpAddr::from(Ipv6Addr::LOCALHOST);
        let relay = start(options());
        let lane = |protocol, endpoint| {
            let key = Key {
                family: Family::V6,
                ..key("n", protocol)
            };
            let port = relay.open(
                &key,
                Class::Internal,
                Listen::at(Ipv6Addr::UNSPECIFIED.into()),
            );
            relay.set(&key, backends(&[endpoint]));
            SocketAddr::new(home, port.unwrap())
        };
        let listener = TcpListener::bind((home, 0)).unwrap();
        let to = lane(Protocol::Tcp, listener.local_addr().unwrap());
        let mut client = client(&to.to_string());
        client.write_all(b"six").unwrap();
        let mut bytes = [0; 3];
        let (mut server, _) = listener.accept().unwrap();
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"six");

        let server = UdpSocket::bind((home, 0)).unwrap();
        let to = lane(Protocol::Udp, server.local_addr().unwrap());
        let client = UdpSocket::bind((home, 0)).unwrap();
        client.connect(to).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.send(b"ask").unwrap();
        let (_, peer) = server.recv_from(&mut bytes).unwrap();
        server.send_to(b"say", peer).unwrap();
        client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes, b"say");
    });
}
