//! Packets of others that pass through the node: a client in one network, pods in another.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::{Family, TrafficPolicy};
use ferrule_kernel::netns;

use crate::packets::refused;
use crate::support::*;

/// The number of the calling thread, and the file of its network.
fn here() -> (String, String) {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    let number = link.file_name().unwrap().to_str().unwrap().to_owned();
    let file = Path::new("/proc").join(link).join("ns/net");
    (number, file.to_str().unwrap().to_owned())
}

fn bits(family: Family, address: IpAddr) -> String {
    let bits = if family == Family::V4 { 24 } else { 112 };
    format!("{address}/{bits}")
}

fn add_address(family: Family, address: IpAddr, link: &str) {
    let address = bits(family, address);
    run("ip", &["address", "add", &address, "dev", link, "nodad"]);
    run("ip", &["link", "set", link, "up"]);
}

/// Lays a cable in the calling thread's network. The near end is a gateway.
fn lay(family: Family, link: &str, net: u8) {
    let far = format!("{link}-far");
    let cable = ["link", "add", link, "type", "veth", "peer", "name", &far];
    run("ip", &cable);
    add_address(family, address(family, net, 254), link);
}

/// Takes the far end of a cable out of the node's network into the calling thread's.
fn join(family: Family, node: &str, link: &str, net: u8, addresses: &[u8]) {
    let (thread, _) = here();
    let far = format!("{link}-far");
    let enter = format!("--net={node}");
    run(
        "nsenter",
        &[&enter, "ip", "link", "set", &far, "netns", &thread],
    );
    run("ip", &["link", "set", "lo", "up"]);
    for number in addresses {
        add_address(family, address(family, net, *number), &far);
    }
    let gateway = address(family, net, 254).to_string();
    let version = if family == Family::V4 { "-4" } else { "-6" };
    let source = address(family, net, addresses[0]).to_string();
    let default = ["route", "add", "default", "via", &gateway, "src", &source];
    run("ip", &[&[version], &default[..]].concat());
}

/// How long a connection may take. A cable that is up still loses packets for a moment, and then
/// TCP asks again after a second.
const PATIENCE: Duration = Duration::from_secs(8);

fn connect(listeners: &[TcpListener], to: IpAddr, port: u16) -> Result<(usize, IpAddr), ErrorKind> {
    connect_within(PATIENCE, listeners, to, port)
}

fn connect_within(
    patience: Duration,
    listeners: &[TcpListener],
    to: IpAddr,
    port: u16,
) -> Result<(usize, IpAddr), ErrorKind> {
    let to = SocketAddr::new(to, port);
    let _stream = TcpStream::connect_timeout(&to, patience).map_err(|error| error.kind())?;
    let accepted = listeners
        .iter()
        .enumerate()
        .find_map(|(pod, listener)| Some((pod, listener.accept().ok()?)));
    let (pod, (_, peer)) = accepted.expect("a pod accepted the connection");
    Ok((pod, peer.ip()))
}

fn pass(family: Family) {
    let pod_net = match family {
        Family::V4 => "10.1.0.0/24",
        Family::V6 => "fd00::1:0/112",
    };
    let forwarding = match family {
        Family::V4 => "net.ipv4.ip_forward=1",
        Family::V6 => "net.ipv6.conf.all.forwarding=1",
    };
    run("sysctl", &["-qw", forwarding]);
    let settings = Settings {
        detect_local: DetectLocal::ClusterCidr([pod_net.parse().unwrap()].into()),
        ..Settings::default()
    };
    let a = |x, y| address(family, x, y);
    let pods = [(a(1, 1), true), (a(1, 2), false)];
    let (client, gateway, vip, cluster_ip) = (a(3, 1), a(3, 254), a(9, 1), a(96, 1));
    let mut scene = Scene::with(family, settings);
    let allow: &[&str] = match family {
        Family::V4 => &["10.3.0.0/24"],
        Family::V6 => &["fd00::3:0/112"],
    };
    let deny: &[&str] = match family {
        Family::V4 => &["10.4.0.0/24"],
        Family::V6 => &["fd00::4:0/112"],
    };
    let exposed = |ranges| {
        let service = with_load_balancer(service(family, "web", 1), vip, ranges);
        with_node_port(service, 30001)
    };
    scene
        .service(exposed(allow))
        .slice(slice(family, "web", &pods[..1]));
    scene.whole();
    lay(family, "pods", 1);
    lay(family, "client", 3);
    // Only what has a way out gets as far as the rules that refuse.
    for address in [vip, cluster_ip] {
        run("ip", &["route", "add", &address.to_string(), "dev", "pods"]);
    }
    let (_, node) = here();
    let (node, scene) = (&node, &mut scene);
    let inside = move || {
        join(family, node, "pods", 1, &[1, 2]);
        let listeners = [a(1, 1), a(1, 2)].map(|pod| {
            let listener = TcpListener::bind((pod, 8080)).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        // A pod that reaches itself sees the node; else it would answer itself directly.
        let looped = connect(&listeners, cluster_ip, 80);
        assert_eq!(looped, Ok((0, a(1, 254))));
        scene.slice(slice(family, "web", &pods)).step();
        let outside = move || {
            join(family, node, "client", 3, &[1]);
            let reached = |to, port| {
                let seen = (0..40).map(|_| connect(&listeners, to, port).unwrap());
                let mut seen: Vec<_> = seen.collect();
                seen.sort_unstable();
                seen.dedup();
                seen
            };
            let masqueraded = [(0, a(1, 254)), (1, a(1, 254))];
            for (to, port) in [(cluster_ip, 80), (vip, 80), (gateway, 30001)] {
                assert_eq!(reached(to, port), masqueraded, "{to} {port}");
            }
            scene.service(exposed(deny)).step();
            let dropped = |to, port| {
                let result = connect_within(Duration::from_millis(500), &listeners, to, port);
                assert_eq!(result, Err(ErrorKind::TimedOut));
            };
            dropped(vip, 80);
            assert_eq!(reached(gateway, 30001), masqueraded);
            // Kept on this node, clients outside keep their address.
            let mut local = exposed(allow);
            local.external_policy_field = TrafficPolicy::Local;
            scene.service(local).step();
            for (to, port) in [(vip, 80), (gateway, 30001)] {
                assert_eq!(reached(to, port), [(0, client)], "{to} {port}");
            }
            assert_eq!(reached(cluster_ip, 80), masqueraded);
            scene.slice(slice(family, "web", &pods[1..])).step();
            dropped(vip, 80);
            dropped(gateway, 30001);
            scene.no_slice("web").step();
            for (to, port) in [(cluster_ip, 80), (vip, 80), (gateway, 30001)] {
                refused(to, port);
            }
        };
        netns::isolated(outside).unwrap();
    };
    netns::isolated(inside).unwrap();
}

#[test]
fn packets_of_others_are_led_to_pods() {
    for family in Family::ALL {
        in_namespace(move || pass(family));
    }
}
