//! The least that the kernel must receive: flat maps of the same Services, straight as messages.
//!
//! No desired state, no drawing, no comparison. What ferrule takes longer than this is its own.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::Family;
use ferrule_kernel::nft::expr::{Found, NatKind, NumgenKind};
use ferrule_kernel::nft::{
    Batch, BatchError, Chain, ChainKind, Element, Expr, Field, Hook, Name, Nft, Reg, Rule, Set,
    Table, Value, Verdict,
};

const TABLE: &str = "kube-proxy";
const TCP: u8 = 6;

/// Writes and commits the whole table.
pub fn load(nft: &mut Nft, services: u32) -> Result<(), BatchError> {
    nft.commit(&table(services)).map(drop)
}

/// Deletes the table.
pub fn delete(nft: &mut Nft) -> Result<(), BatchError> {
    let mut batch = Batch::new(Family::V4, TABLE);
    batch.delete_table();
    nft.commit(&batch).map(drop)
}

/// Replaces endpoints, `changes` times.
pub fn replacements(
    nft: &mut Nft,
    services: u32,
    changes: std::ops::Range<u32>,
) -> Result<Vec<Duration>, BatchError> {
    let mut times = Vec::new();
    for change in changes {
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

/// Lets Services grow from two endpoints to three and shrink again, `changes` times.
pub fn growth(
    nft: &mut Nft,
    services: u32,
    changes: std::ops::Range<u32>,
) -> Result<Vec<Duration>, BatchError> {
    let mut times = Vec::new();
    for change in changes {
        let key = frontend(change.wrapping_mul(7919) % services);
        let third = Element::value(key.number(2), endpoint(0, 2));
        for more in [true, false] {
            let start = Instant::now();
            let mut batch = Batch::new(Family::V4, TABLE);
            if more {
                batch.add_elements("endpoints", [&third]);
            } else {
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
    let chain: Name = "pick".into();
    batch.add_chain(&Chain::new(chain.clone()));
    // Of four slots some are empty.
    for slots in [4, 2] {
        batch.add_rule(&Rule::new(chain.clone(), pick(slots)));
    }
    let verdict = |service| Element::verdict(frontend(service), Verdict::Goto(chain.clone()));
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

fn pick(slots: u32) -> Vec<Expr> {
    let mut expressions = load_frontend();
    expressions.extend([
        Expr::Numgen {
            kind: NumgenKind::Random,
            modulus: slots,
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
