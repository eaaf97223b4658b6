//! What goes on must go on: restarts and changes of others are never felt.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::socket::Transport;
use ferrule_testbed::{Answer, KINDS, Kind, Lab, Place, Protocol, full, local};

use crate::support::*;

/// No answer takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(10);

fn connect(place: &Place, to: (IpAddr, u16)) -> TcpStream {
    let stream = place.run(move || TcpStream::connect(to).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut byte = [0];
    while byte != *b"\n" {
        (&stream).read_exact(&mut byte).unwrap();
    }
    stream
}

/// Sends without pause and hears everything again, in order.
fn pour(mut stream: TcpStream, stop: &AtomicBool, count: &AtomicUsize) {
    let mut number = 0_u64;
    let mut buffer = [0; 64 * 8];
    while !stop.load(Ordering::Relaxed) {
        for part in buffer.chunks_mut(8) {
            part.copy_from_slice(&number.to_ne_bytes());
            number += 1;
        }
        stream.write_all(&buffer).unwrap();
        let mut heard = [0; 64 * 8];
        stream.read_exact(&mut heard).expect("the stream goes on");
        assert_eq!(heard, buffer);
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Asks and waits for the answer, again and again over one connection.
fn converse(mut stream: TcpStream, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(b"GET /").unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).expect("an answer comes");
        assert_eq!(&heard, b"GET /");
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(2));
    }
}

/// The same by datagrams; none is sent again.
fn echo(socket: &UdpSocket, stop: &AtomicBool, count: &AtomicUsize) {
    let mut number = 0_u64;
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        socket.send(&number.to_ne_bytes()).unwrap();
        let len = socket.recv(&mut buffer).expect("no datagram is lost");
        assert!(buffer[..len].ends_with(&number.to_ne_bytes()));
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

/// New clients, each of them served.
fn arrive(lab: &Lab, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        for kind in KINDS {
            for protocol in Protocol::ALL {
                let answer = lab.ask(protocol, kind, 1).put(&lab.out);
                assert!(matches!(answer, Answer::Served { .. }), "{answer:?}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Watches over everything that goes on while `work` is done.
fn meanwhile(lab: &Lab, work: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let counts: [AtomicUsize; 4] = std::array::from_fn(|_| AtomicUsize::new(0));
    let cluster_ip = lab.target(Kind::ClusterIp, 1);
    let stream = connect(&lab.out, cluster_ip);
    let client = connect(&lab.pod, cluster_ip);
    let any = cluster_ip.0;
    let socket = lab.pod.run(move || {
        let any: IpAddr = match any {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(cluster_ip).unwrap();
        socket
    });
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pour(stream, &stop, &counts[0]));
        scope.spawn(|| converse(client, &stop, &counts[1]));
        scope.spawn(|| echo(&socket, &stop, &counts[2]));
        scope.spawn(|| arrive(lab, &stop, &counts[3]));
        let _stop = Stop(&stop);
        work();
        // On a busy machine the work may be done before anybody got a word in.
        let spoke = || counts.iter().all(|count| count.load(Ordering::Relaxed) > 5);
        for _ in 0..2000 {
            if spoke() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    });
    for count in counts {
        assert!(count.into_inner() > 5, "something did go on");
    }
}

/// Ends what goes on, also when the work panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn scene(lab: &Lab) -> Scene {
    let mut scene = Scene::at(lab, lab.by_pod_net());
    let family = scene.family;
    scene
        .service(full(family, "all", 1))
        .slice(lab.pods("all", &[1, 2]));
    scene.whole();
    scene
}

#[test]
fn a_hundred_restarts_are_not_felt() {
    Lab::both(|lab| {
        let mut scene = scene(lab);
        meanwhile(lab, || {
            for _ in 0..100 {
                scene.restart();
                assert_eq!(scene.whole(), 0);
            }
        });
    });
}

/// Numbers that look random and are always the same.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Something happens to a Service other than the first.
fn change_another<T: Transport + Send>(scene: &mut Scene<T>, draw: &mut Draw) {
    let family: Family = scene.family;
    let number = u8::try_from(2 + draw.below(20)).unwrap();
    let name = format!("other-{number}");
    match draw.below(8) {
        0 => {
            scene.no_service(&name);
        }
        1 | 2 => {
            let mut service = full(family, &name, number);
            if draw.below(2) == 0 {
                service = local(service);
            }
            if draw.below(3) == 0 {
                service = service.affinity(60);
            }
            if draw.below(3) == 0 {
                let range = ferrule_testbed::net(family, 5, 8);
                service.source_ranges = [range.parse().unwrap()].into();
            }
            scene.service(service);
        }
        3 => {
            let bits = u8::try_from(6 + draw.below(3)).unwrap();
            let net = ferrule_testbed::net(family, 96, bits);
            scene.service_cidr("kubernetes", &[&net]);
        }
        _ => {
            let count = draw.below(5);
            let ip = |draw: &mut Draw| address(family, 21, u8::try_from(draw.below(200)).unwrap());
            let pods: Vec<_> = (0..count).map(|n| (ip(draw), n % 2 == 0)).collect();
            scene.slice(slice(family, &name, &pods).over(&PROTOCOLS));
        }
    }
}

#[test]
fn a_thousand_changes_of_others_are_not_felt() {
    Lab::both(|lab| {
        let mut scene = scene(lab);
        let mut draw = Draw(7);
        meanwhile(lab, || {
            for _ in 0..1000 {
                change_another(&mut scene, &mut draw);
                scene.step();
            }
        });
    });
}

/// Puts something into the table that makes it another's, and starts over it.
fn spoil(lab: &Lab, scene: &mut Scene) {
    let word = ferrule_testbed::word(lab.family);
    lab.node
        .run(move || run("nft", &["add", "chain", word, TABLE, "somebody"]));
    scene.restart();
}

// Not so a flush by somebody else: when the last chain of its kind goes, the kernel stops to
// translate what is under way, and until the table is back such packets go astray.
#[test]
fn replacing_the_whole_table_is_not_felt() {
    Lab::both(|lab| {
        let mut scene = scene(lab);
        meanwhile(lab, || {
            for _ in 0..30 {
                spoil(lab, &mut scene);
                assert!(scene.whole() > 50);
            }
        });
    });
}

#[test]
fn nft_083_connections_outlive_every_change_that_keeps_their_endpoint() {
    Lab::both(|lab| {
        let mut scene = scene(lab);
        let family = scene.family;
        scene.slice(lab.pods("all", &[1])).step();
        let mut streams: Vec<_> = KINDS
            .into_iter()
            .map(|kind| connect(&lab.out, lab.target(kind, 1)))
            .collect();
        let mut check = |what: &str| {
            for stream in &mut streams {
                stream.write_all(what.as_bytes()).expect(what);
                let mut heard = vec![0; what.len()];
                stream.read_exact(&mut heard).expect(what);
                assert_eq!(heard, what.as_bytes());
            }
        };
        check("as it was");
        scene.slice(lab.pods("all", &[1, 2])).step();
        check("another endpoint came");
        scene.service(full(family, "all", 1).affinity(60)).step();
        check("clients stay from now on");
        scene.service(local(full(family, "all", 1))).step();
        check("bound to the node");
        let range = ferrule_testbed::net(lab.family, 5, 8);
        let mut closed = full(family, "all", 1);
        closed.source_ranges = [range.parse().unwrap()].into();
        scene.service(closed).step();
        check("others may use it");
        scene
            .settings(ferrule_core::facts::Settings::default())
            .step();
        check("pods cannot be told");
        scene.restart();
        scene.whole();
        check("a restart");
        spoil(lab, &mut scene);
        assert!(scene.whole() > 50);
        check("the whole table is replaced");
        // TCP finds out by itself when its endpoint is gone, so even this is no end.
        scene.slice(lab.pods("all", &[2])).step();
        check("the endpoint is listed no more");
    });
}
