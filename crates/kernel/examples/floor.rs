//! Measures how fast the kernel takes the rules of a large cluster, in a namespace of its own.
//!
//! 10,000 Services with two endpoints each, in flat maps: the whole table at once, one endpoint
//! replaced, one Service growing from two endpoints to three and back, and reading all of it.
//!
//! `cargo run --release -p ferrule-kernel --example floor [services]`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "this program exists to read the clock and to print"
)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::Family;
use ferrule_kernel::netns;
use ferrule_kernel::nft::expr::{Found, NatKind, NumgenKind};
use ferrule_kernel::nft::{
    Batch, Chain, ChainKind, Element, Event, Expr, Field, Hook, Name, Nft, Reg, Rule, Set, Table,
    Value, Verdict, Watch,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TABLE: &str = "kube-proxy";
const TCP: u8 = 6;
const RUNS: usize = 5;
const CHANGES: u32 = 2000;

fn main() -> Outcome<()> {
    let services = match std::env::args().nth(1) {
        Some(argument) => argument.parse()?,
        None => 10_000,
    };
    netns::isolated(|| measure(services))?
}

fn measure(services: u32) -> Outcome<()> {
    let mut nft = Nft::open()?;
    let (mut encode, mut load) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        if run > 0 {
            let mut batch = Batch::new(Family::V4, TABLE);
            batch.delete_table();
            nft.commit(&batch)?;
        }
        let start = Instant::now();
        let batch = table(services);
        encode.push(start.elapsed());
        let start = Instant::now();
        nft.commit(&batch)?;
        load.push(start.elapsed());
    }
    println!("{services} Services with two endpoints each");
    report("cold load, encode", encode);
    report("cold load, commit", load);
    report("one endpoint replaced", replacements(&mut nft, services)?);
    report(
        "two to three endpoints and back",
        growth(&mut nft, services)?,
    );
    let start = Instant::now();
    let snapshot = nft.snapshot(Family::V4, TABLE)?.ok_or("no table")?;
    report("snapshot", vec![start.elapsed()]);
    let elements: usize = snapshot.elements.values().map(Vec::len).sum();
    println!("{elements} elements, {}", memory()?);
    heard(&mut nft, services)
}

/// The same while somebody listens: the kernel then describes every change.
fn heard(nft: &mut Nft, services: u32) -> Outcome<()> {
    let mut watch = Watch::open()?;
    report("heard: one endpoint replaced", replacements(nft, services)?);
    let (mut events, mut missed) = (0, false);
    loop {
        let next = watch.next(Duration::ZERO)?;
        if next.is_empty() {
            break;
        }
        missed |= next.contains(&Event::Missed);
        events += next.len();
    }
    println!("{events} events, missed {missed}");
    let mut load = Vec::new();
    for _ in 0..RUNS {
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.delete_table();
        nft.commit(&batch)?;
        while !watch.next(Duration::ZERO)?.is_empty() {}
        let batch = table(services);
        let start = Instant::now();
        nft.commit(&batch)?;
        load.push(start.elapsed());
    }
    report("heard: cold load, commit", load);
    Ok(())
}

/// Each change is written and committed; both are in the time.
fn replacements(nft: &mut Nft, services: u32) -> Outcome<Vec<Duration>> {
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let service = change.wrapping_mul(7919) % services;
        let key = frontend(service).number(0);
        let start = Instant::now();
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.delete_elements("endpoints", [Element::new(key)]);
        let new = Value::from(IpAddr::from((0x0a80_0000 + change).to_be_bytes())).port(8080);
        batch.add_elements("endpoints", [Element::value(key, new)]);
        nft.commit(&batch)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn growth(nft: &mut Nft, services: u32) -> Outcome<Vec<Duration>> {
    let mut times = Vec::new();
    for change in 0..CHANGES / 10 {
        let key = frontend(change.wrapping_mul(7919) % services);
        let third = Element::value(key.number(2), endpoint(0, 2));
        let goto = |count: &str| Element::verdict(key, Verdict::Goto(count.into()));
        for (from, to) in [("pick-2", "pick-3"), ("pick-3", "pick-2")] {
            let start = Instant::now();
            let mut batch = Batch::new(Family::V4, TABLE);
            if to == "pick-3" {
                batch.add_elements("endpoints", [&third]);
            }
            batch.delete_elements("service-ips", [goto(from)]);
            batch.add_elements("service-ips", [goto(to)]);
            if to == "pick-2" {
                batch.delete_elements("endpoints", [&third]);
            }
            nft.commit(&batch)?;
            times.push(start.elapsed());
        }
    }
    Ok(times)
}

fn table(services: u32) -> Batch {
    let mut batch = Batch::new(Family::V4, TABLE);
    batch.add_table(&Table::new(TABLE));
    batch.add_chain(&Chain::base(
        "nat-output",
        ChainKind::Nat,
        Hook::Output,
        -100,
    ));
    batch.add_chain(&Chain::new("services"));
    let slot = [Field::Ipv4Addr, Field::Protocol, Field::Port, Field::Number];
    batch.add_set(&Set::map("endpoints", slot, [Field::Ipv4Addr, Field::Port]));
    batch.add_set(&Set::verdicts("service-ips", &slot[..3]));
    batch.add_set(&Set::new(
        "hairpin-connections",
        [
            Field::Ipv4Addr,
            Field::Ipv4Addr,
            Field::Protocol,
            Field::Port,
        ],
    ));
    let jump = Expr::Verdict(Verdict::Jump("services".into()));
    batch.add_rule(&Rule::new("nat-output", vec![jump]));
    batch.add_rule(&Rule::new("services", dispatch()));
    for count in [2, 3] {
        let name = format!("pick-{count}");
        batch.add_chain(&Chain::new(name.as_str()));
        batch.add_rule(&Rule::new(name, pick(count)));
    }
    let pick: Name = "pick-2".into();
    let verdict = |service| Element::verdict(frontend(service), Verdict::Goto(pick.clone()));
    batch.add_elements("service-ips", (0..services).map(verdict));
    let slots = (0..services).flat_map(|service| [0, 1].map(|slot| (service, slot)));
    batch.add_elements(
        "endpoints",
        slots.clone().map(|(service, slot)| {
            Element::value(frontend(service).number(slot), endpoint(service, slot))
        }),
    );
    batch.add_elements(
        "hairpin-connections",
        slots.map(|(service, slot)| {
            let address = address(service, slot);
            let key = Value::from(address).address(address);
            Element::new(key.protocol(TCP).port(8080))
        }),
    );
    batch
}

fn dispatch() -> Vec<Expr> {
    let mut expressions = load_frontend();
    expressions.push(Expr::Lookup {
        set: "service-ips".into(),
        key: Reg::FIRST,
        found: Found::Verdict,
    });
    expressions
}

fn pick(count: u32) -> Vec<Expr> {
    let mut expressions = load_frontend();
    expressions.extend([
        Expr::Numgen {
            kind: NumgenKind::Random,
            modulus: count,
            offset: 0,
            into: Reg::new(3),
        },
        Expr::Lookup {
            set: "endpoints".into(),
            key: Reg::FIRST,
            found: Found::Value(Reg::FIRST),
        },
        Expr::Nat {
            kind: NatKind::Destination,
            family: Family::V4,
            address: Some(Reg::FIRST),
            port: Some(Reg::new(1)),
            flags: 0,
        },
    ]);
    expressions
}

fn load_frontend() -> Vec<Expr> {
    vec![
        Expr::destination_address(Family::V4, Reg::FIRST),
        Expr::protocol(Reg::new(1)),
        Expr::destination_port(Reg::new(2)),
    ]
}

fn frontend(service: u32) -> Value {
    Value::from(IpAddr::from((0xac1e_0000 + service).to_be_bytes()))
        .protocol(TCP)
        .port(80)
}

fn endpoint(service: u32, slot: u32) -> Value {
    Value::from(address(service, slot)).port(8080)
}

fn address(service: u32, slot: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + service * 4 + slot).to_be_bytes())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{what:<34} p50 {:>10.1?}  p99 {:>10.1?}  min {:>10.1?}",
        at(50),
        at(99),
        at(0)
    );
}

fn memory() -> Outcome<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    Ok(peak
        .ok_or("no VmHWM")?
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}
