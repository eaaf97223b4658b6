//! Somebody flushes the tables while traffic flows, in mode iptables.
//!
//! What goes on is never felt by those who are connected: the kernel remembers how to translate
//! their packets as long as the chains that packets enter are there. Those who come in the moment
//! before the repair are not served, and everybody after it is.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_testbed::{Answer, Ask, Lab, Place, Protocol, address};

use super::iptables::saved;
use super::support::*;

/// On a node somebody else always asks for tracked connections. Where nobody does, the kernel stops
/// to track them with our last rule, and then it cannot translate either.
pub const TRACKED: &str = "-t security -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT";

const VIP: (u8, u8) = (96, 1);

/// A Service with both pods of the lab behind it.
pub fn manifests(lab: &Lab) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let family = match lab.family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let (vip, here, far) = (vip(lab), lab.here_ip(), lab.far_ip());
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: demo}}\n\
         spec:\n  clusterIP: \"{vip}\"\n  clusterIPs: [\"{vip}\"]\n  ipFamilies: [{family}]\n  \
         ports: [{{port: 80}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: {family}\nports: [{{port: 8080}}]\n\
         endpoints:\n  - {{addresses: [\"{here}\"]}}\n  - {{addresses: [\"{far}\"]}}\n"
    );
    fs::write(folder.path().join("web.yaml"), text).unwrap();
    folder
}

pub fn vip(lab: &Lab) -> IpAddr {
    address(lab.family, VIP.0, VIP.1)
}

/// A proxy on the node of the lab.
fn proxy(lab: &Lab, flavour: &'static str, period: &'static str) -> Proxy {
    let folder = manifests(lab);
    let program = program(lab, flavour);
    let pods = format!("--cluster-cidr={}", lab.pod_net());
    lab.node.run(move || {
        let hint = ["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"];
        run(&format!("iptables-{flavour}"), &hint);
        run(&program, &TRACKED.split(' ').collect::<Vec<_>>());
        let quick = [IPTABLES, "--iptables-min-sync-period=0s", period, &pods];
        let proxy = Proxy::with_rules(folder.path(), &quick);
        proxy.ready();
        proxy
    })
}

pub fn connect(place: &Place, to: IpAddr) -> TcpStream {
    let stream = place.run(move || TcpStream::connect((to, 80)).unwrap());
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut byte = [0];
    while byte != *b"\n" {
        (&stream).read_exact(&mut byte).unwrap();
    }
    stream
}

/// Says something of this length again and again, and hears it each time.
pub fn converse(mut stream: TcpStream, length: usize, stop: &AtomicBool, count: &AtomicUsize) {
    let word = vec![b'x'; length];
    let mut heard = vec![0; length];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&word).expect("what is connected goes on");
        stream.read_exact(&mut heard).expect("an answer comes");
        assert_eq!(heard, word);
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends what goes on, also when the work panics.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Flushes again and again while two clients talk; `flush` is what iptables is told.
fn survives(
    lab: &Lab,
    flavour: &'static str,
    period: &'static str,
    flush: &'static [&'static str],
) {
    let proxy = proxy(lab, flavour, period);
    let rules = lab.node.run(move || saved(flavour));
    let vip = vip(lab);
    let stop = AtomicBool::new(false);
    let (stream, keep_alive) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (pouring, asking) = (connect(&lab.out, vip), connect(&lab.pod, vip));
    thread::scope(|scope| {
        scope.spawn(|| converse(pouring, 8192, &stop, &stream));
        scope.spawn(|| converse(asking, 8, &stop, &keep_alive));
        let _stop = Stop(&stop);
        let goes_on = |what: &str| {
            for count in [&stream, &keep_alive] {
                let before = count.load(Ordering::Relaxed);
                until(what, || {
                    (count.load(Ordering::Relaxed) > before + 3).then_some(())
                });
            }
        };
        goes_on("traffic flows");
        for round in 0..5 {
            let program = program(lab, flavour);
            lab.node.run(move || {
                for arguments in flush {
                    run(&program, &arguments.split(' ').collect::<Vec<_>>());
                }
            });
            goes_on("it flows on");
            until(&format!("repaired\n{}", proxy.log()), || {
                (lab.node.run(move || saved(flavour)) == rules).then_some(())
            });
            for place in [&lab.out, &lab.pod, &lab.node] {
                let answer = Ask::new(Protocol::Tcp, vip, 80).put(place);
                let served = matches!(answer, Answer::Served { .. });
                assert!(served, "round {round}: {answer:?}");
            }
        }
        goes_on("to the end");
    });
}

pub fn program(lab: &Lab, flavour: &str) -> String {
    match lab.family {
        Family::V4 => format!("iptables-{flavour}"),
        Family::V6 => format!("ip6tables-{flavour}"),
    }
}

#[test]
fn who_is_connected_does_not_feel_a_flush() {
    Lab::both(|lab| {
        let all = &["-t mangle -F", "-t nat -F", "-F"];
        survives(lab, "nft", "--iptables-sync-period=1h", all);
    });
}

#[test]
fn who_is_connected_does_not_feel_a_flush_of_the_older_flavour() {
    Lab::both(|lab| {
        let all = &["-F", "-X", "-t nat -F", "-t nat -X", "-t mangle -X"];
        survives(lab, "legacy", "--iptables-sync-period=1s", all);
    });
}
