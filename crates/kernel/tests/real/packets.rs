//! Real connections through the expressions, on loopback.
//!
//! The affinity chain is one that `nft` has no words for: the endpoint that was drawn is both
//! written to a map and translated to.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

use ferrule_kernel::Family;
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow};
use ferrule_kernel::nft::expr::{DynsetOp, Found, NatKind, NumgenKind};
use ferrule_kernel::nft::{
    Batch, Chain, ChainKind, Data, Element, Expr, Field, Hook, Nft, Reg, Rule, Set, Table, Timeout,
    Value, Verdict,
};

use crate::sample::{TABLE, address};
use crate::support::{in_namespace, run};

const TCP: u8 = 6;

/// Two machines' worth of addresses on loopback, a table, and two listeners.
struct Scene {
    family: Family,
    nft: Nft,
    listeners: Vec<TcpListener>,
}

impl Scene {
    fn open(family: Family) -> Self {
        let bits = if family == Family::V4 { "/32" } else { "/128" };
        let addresses = [
            vip(family),
            client(family),
            endpoint(family, 0),
            endpoint(family, 1),
        ];
        for address in addresses {
            let text = format!("{address}{bits}");
            run("ip", &["address", "add", &text, "dev", "lo", "nodad"]);
        }
        let listeners = (0..2).map(|slot| {
            let listener = TcpListener::bind((endpoint(family, slot), 8080)).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let listeners = listeners.collect();
        let mut nft = Nft::open().unwrap();
        nft.commit(&table(family)).unwrap();
        Self {
            family,
            nft,
            listeners,
        }
    }

    /// Points the service at a chain.
    fn serve_by(&mut self, chain: &str) {
        let mut batch = Batch::new(self.family, TABLE);
        batch.flush_set("service-ips");
        let goto = Verdict::Goto(chain.into());
        batch.add_elements(
            "service-ips",
            [Element::verdict(frontend(self.family), goto)],
        );
        self.nft.commit(&batch).unwrap();
    }

    /// Connects to the service, and tells which listener it was.
    fn connect(&self) -> usize {
        let stream = TcpStream::connect(SocketAddr::new(vip(self.family), 80)).unwrap();
        let found = self
            .listeners
            .iter()
            .position(|listener| match listener.accept() {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    false
                }
            });
        drop(stream);
        found.expect("somebody accepted the connection")
    }
}

fn vip(family: Family) -> IpAddr {
    address(family, 96, 1)
}

fn client(family: Family) -> IpAddr {
    address(family, 2, 1)
}

fn endpoint(family: Family, slot: u8) -> IpAddr {
    address(family, 1, slot + 1)
}

fn frontend(family: Family) -> Value {
    Value::from(vip(family)).protocol(TCP).port(80)
}

/// Four bytes per register.
fn words(family: Family) -> u8 {
    u8::try_from(family.address_len() / 4).unwrap()
}

fn table(family: Family) -> Batch {
    let field = Field::address(family);
    let slot = [field, Field::Protocol, Field::Port, Field::Number];
    let mut batch = Batch::new(family, TABLE);
    batch.add_table(&Table::new(TABLE));
    let base = Chain::base("nat-output", ChainKind::Nat, Hook::Output, -100);
    batch.add_chain(&base);
    batch.add_set(&Set::verdicts("service-ips", &slot[..3]));
    batch.add_set(&Set::map("endpoints", slot, [field, Field::Port]));
    batch.add_set(&Set {
        dynamic: true,
        timeout: Timeout::Default(Duration::from_hours(3)),
        size: NonZeroU32::new(1 << 20),
        ..Set::map(
            "affinity",
            [Field::Port, Field::Protocol, field],
            [field, Field::Port],
        )
    });
    let mut dispatch = load_frontend(family);
    dispatch.push(lookup("service-ips", Reg::FIRST, Found::Verdict));
    batch.add_rule(&Rule::new("nat-output", dispatch));
    batch.add_chain(&Chain::new("pick"));
    batch.add_rule(&Rule::new("pick", pick(family, false)));
    batch.add_chain(&Chain::new("stay"));
    batch.add_rule(&Rule::new("stay", stay(family)));
    batch.add_rule(&Rule::new("stay", pick(family, true)));
    for number in 0..2 {
        let value = Value::from(endpoint(family, number)).port(8080);
        let key = frontend(family).number(number.into());
        batch.add_elements("endpoints", [Element::value(key, value)]);
    }
    batch
}

fn lookup(set: &str, key: Reg, found: Found) -> Expr {
    Expr::Lookup {
        set: set.into(),
        key,
        found,
    }
}

fn load_frontend(family: Family) -> Vec<Expr> {
    vec![
        Expr::destination_address(family, Reg::FIRST),
        Expr::protocol(Reg::new(words(family))),
        Expr::destination_port(Reg::new(words(family) + 1)),
    ]
}

/// The client's key, in the registers behind those of the endpoint.
const CLIENT: Reg = Reg::new(8);

fn load_client(family: Family) -> Vec<Expr> {
    vec![
        Expr::destination_port(CLIENT),
        Expr::protocol(Reg::new(9)),
        Expr::source_address(family, Reg::new(10)),
    ]
}

fn remember() -> Expr {
    Expr::Dynset {
        set: "affinity".into(),
        op: DynsetOp::Update,
        key: CLIENT,
        data: Some(Reg::FIRST),
        timeout: None,
    }
}

fn translate(family: Family) -> Expr {
    Expr::Nat {
        kind: NatKind::Destination,
        family,
        address: Some(Reg::FIRST),
        port: Some(Reg::new(words(family))),
        flags: 0,
    }
}

/// Draws an endpoint, remembers it if asked to, and translates to it.
fn pick(family: Family, sticky: bool) -> Vec<Expr> {
    let mut rule = load_frontend(family);
    rule.extend([
        Expr::Numgen {
            kind: NumgenKind::Random,
            modulus: 2,
            offset: 0,
            into: Reg::new(words(family) + 2),
        },
        lookup("endpoints", Reg::FIRST, Found::Value(Reg::FIRST)),
    ]);
    if sticky {
        rule.extend(load_client(family));
        rule.push(remember());
    }
    rule.push(translate(family));
    rule
}

/// Translates to the remembered endpoint, if there is one, and begins its time anew.
fn stay(family: Family) -> Vec<Expr> {
    let mut rule = load_client(family);
    rule.extend([
        lookup("affinity", CLIENT, Found::Value(Reg::FIRST)),
        remember(),
        translate(family),
    ]);
    rule
}

fn balances(family: Family) {
    in_namespace(move || {
        let mut scene = Scene::open(family);
        scene.serve_by("pick");
        let mut counts = [0; 2];
        for _ in 0..200 {
            counts[scene.connect()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        let mut conntrack = Conntrack::open().unwrap();
        let flows = conntrack
            .flows(&Filter::protocol(family, TCP), |_| true)
            .unwrap()
            .flows;
        let translated = |flow: &&Flow| flow.status & Flow::DESTINATION_TRANSLATED != 0;
        assert_eq!(flows.iter().filter(translated).count(), 200);
    });
}

fn stays(family: Family) {
    in_namespace(move || {
        let mut scene = Scene::open(family);
        scene.serve_by("stay");
        let first = scene.connect();
        for _ in 0..50 {
            assert_eq!(scene.connect(), first);
        }
        let mut remembered = scene.nft.elements(family, TABLE, "affinity").unwrap();
        let element = remembered.pop().unwrap();
        assert!(remembered.is_empty());
        let chosen = Value::from(endpoint(family, u8::try_from(first).unwrap())).port(8080);
        assert_eq!(element.data, Data::Value(chosen));
        // Removed, the client gets a new draw; told another one, it goes there.
        let other = 1 - first;
        let told = Value::from(endpoint(family, u8::try_from(other).unwrap())).port(8080);
        let mut batch = Batch::new(family, TABLE);
        batch.delete_elements("affinity", [&element]);
        batch.add_elements("affinity", [Element::value(element.key, told)]);
        scene.nft.commit(&batch).unwrap();
        for _ in 0..20 {
            assert_eq!(scene.connect(), other);
        }
    });
}

#[test]
fn connections_of_ipv4_are_balanced() {
    balances(Family::V4);
}

#[test]
fn connections_of_ipv6_are_balanced() {
    balances(Family::V6);
}

#[test]
fn clients_of_ipv4_stay_with_their_endpoint() {
    stays(Family::V4);
}

#[test]
fn clients_of_ipv6_stay_with_their_endpoint() {
    stays(Family::V6);
}
