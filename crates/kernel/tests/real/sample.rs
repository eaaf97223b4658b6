//! A table as a node proxy has it: every kind of object and expression that is needed for it.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use ferrule_kernel::Family;
use ferrule_kernel::nft::expr::{
    ADDRESS_LOCAL, Base, CT_DNAT, CT_NEW, CtKey, DynsetOp, FIB_DESTINATION, FIB_SOURCE, FibResult,
    Found, MetaKey, NAT_FULLY_RANDOM, NatKind, NumgenKind, Reject,
};
use ferrule_kernel::nft::{
    Batch, Chain, ChainKind, Element, Expr, Field, Hook, Name, Reg, Rule, Set, Table, Timeout,
    Value, Verdict, ranges,
};

pub const TABLE: &str = "kube-proxy";
const MARK: u32 = 0x4000;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Everything in the table, in an order that the kernel accepts.
pub struct Sample {
    pub family: Family,
    pub table: Table,
    pub chains: Vec<Chain>,
    pub sets: Vec<Set>,
    pub elements: Vec<(Name, Vec<Element>)>,
    pub rules: Vec<Rule>,
}

impl Sample {
    pub fn batch(&self) -> Batch {
        let mut batch = Batch::new(self.family, TABLE);
        batch.add_table(&self.table);
        for chain in &self.chains {
            batch.add_chain(chain);
        }
        for set in &self.sets {
            batch.add_set(set);
        }
        for (set, elements) in &self.elements {
            batch.add_elements(set, elements);
        }
        for rule in &self.rules {
            batch.add_rule(rule);
        }
        batch
    }
}

/// An address of the family: 10.x.0.y or `fd00::x:y`.
pub fn address(family: Family, x: u8, y: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, x, 0, y]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, x.into(), y.into()]),
    }
}

pub fn sample(family: Family) -> Sample {
    Sample {
        family,
        table: Table {
            comment: Some("rules for kube-proxy".into()),
            ..Table::new(TABLE)
        },
        chains: chains(),
        sets: sets(family),
        elements: elements(family),
        rules: rules(family),
    }
}

fn chains() -> Vec<Chain> {
    use ChainKind::{Filter, Nat};
    let mut chains = vec![
        Chain::base("filter-pre-dnat", Filter, Hook::Prerouting, -110),
        Chain::base("filter-input", Filter, Hook::Input, 0),
        Chain::base("filter-forward", Filter, Hook::Forward, 0),
        Chain::base("nat-prerouting", Nat, Hook::Prerouting, -100),
        Chain::base("nat-output", Nat, Hook::Output, -100),
        Chain::base("nat-postrouting", Nat, Hook::Postrouting, 100),
        Chain::new("services"),
        Chain::new("masquerading"),
        Chain::new("firewall-check"),
        Chain::new("cluster-ips-check"),
        Chain::new("mark-for-masquerade"),
        Chain::new("pick-2"),
        Chain::new("sticky-2"),
        Chain::new("hash-2"),
        Chain::new("affinity"),
        Chain::new("reject-chain"),
    ];
    let last = chains.last_mut().unwrap();
    last.comment = Some("helper for @no-endpoint-services".into());
    chains
}

fn sets(family: Family) -> Vec<Set> {
    let address = Field::address(family);
    let frontend = [address, Field::Protocol, Field::Port];
    let slot = [address, Field::Protocol, Field::Port, Field::Number];
    let endpoint = [address, Field::Port];
    vec![
        Set::new("cluster-ips", [address]).comment("Active ClusterIPs"),
        Set::new(
            "hairpin-connections",
            [address, address, Field::Protocol, Field::Port],
        )
        .comment("service hairpin connections"),
        Set {
            interval: true,
            ..Set::new("service-cidrs", [address])
        },
        Set {
            interval: true,
            ..Set::new(
                "firewall-allow",
                [address, Field::Protocol, Field::Port, address],
            )
        },
        Set::verdicts("service-ips", frontend)
            .comment("ClusterIP, ExternalIP and LoadBalancer IP traffic"),
        Set::verdicts("service-nodeports", [Field::Protocol, Field::Port]),
        Set::map("endpoints", slot, endpoint).comment("endpoint slots by frontend"),
        Set::map("node-endpoints", [Field::Number], [address]),
        Set::map("marks", [Field::Interface], [Field::Mark]),
        Set {
            dynamic: true,
            timeout: Timeout::Default(Duration::from_mins(10)),
            ..Set::new("affinity-one", [address])
        },
        Set {
            dynamic: true,
            timeout: Timeout::PerElement,
            size: NonZeroU32::new(1 << 20),
            ..Set::map(
                "affinity",
                [address, address, Field::Protocol, Field::Port],
                endpoint,
            )
        },
    ]
}

fn elements(family: Family) -> Vec<(Name, Vec<Element>)> {
    let a = |x, y| address(family, x, y);
    let frontend = |y: u8, port| Value::from(a(96, y)).protocol(TCP).port(port);
    let endpoint = |y: u8| Value::from(a(1, y)).port(8080);
    let goto = |chain: &str| Verdict::Goto(chain.into());
    let lists = [
        (
            "cluster-ips",
            vec![Element::new(a(96, 1).into()), Element::new(a(96, 2).into())],
        ),
        (
            "hairpin-connections",
            vec![Element::new(
                Value::from(a(1, 1))
                    .address(a(1, 1))
                    .protocol(TCP)
                    .port(8080),
            )],
        ),
        (
            "service-cidrs",
            ranges::elements([
                (a(96, 0).into(), a(96, 255).into()),
                (a(98, 3).into(), a(98, 3).into()),
            ]),
        ),
        (
            "firewall-allow",
            vec![Element {
                last: Some(Box::new(frontend(1, 80).address(a(7, 255)))),
                ..Element::new(frontend(1, 80).address(a(7, 0)))
            }],
        ),
        (
            "service-ips",
            vec![
                Element::verdict(frontend(1, 80), goto("pick-2")),
                Element::verdict(frontend(2, 80), goto("reject-chain")).comment("demo/c0:http"),
                Element::verdict(frontend(2, 81), Verdict::Drop),
            ],
        ),
        (
            "service-nodeports",
            vec![Element::verdict(
                Value::new().protocol(UDP).port(30053),
                goto("sticky-2"),
            )],
        ),
        (
            "endpoints",
            vec![
                Element::value(frontend(1, 80).number(0), endpoint(1)),
                Element::value(frontend(1, 80).number(1), endpoint(2)),
            ],
        ),
        (
            "node-endpoints",
            vec![Element::value(Value::new().number(1), a(1, 1).into())],
        ),
        (
            "marks",
            vec![Element::value(
                Value::new().interface("veth0"),
                Value::new().number(MARK),
            )],
        ),
        (
            "affinity",
            vec![Element {
                timeout: Some(Duration::from_hours(3)),
                ..Element::value(
                    Value::from(a(2, 1))
                        .address(a(96, 1))
                        .protocol(TCP)
                        .port(80),
                    endpoint(2),
                )
            }],
        ),
    ];
    lists
        .into_iter()
        .map(|(name, elements)| (name.into(), elements))
        .collect()
}

/// The register behind so many bytes.
fn after(bytes: u32) -> Reg {
    Reg::new(u8::try_from(bytes / 4).unwrap())
}

fn lookup(set: &str, key: Reg, found: Found) -> Expr {
    Expr::Lookup {
        set: set.into(),
        key,
        found,
    }
}

fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.into()))
}

fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.into()))
}

/// Loads destination, protocol and port one after the other, from the first register on.
fn frontend(family: Family) -> Vec<Expr> {
    let address = family.address_len();
    vec![
        Expr::destination_address(family, Reg::FIRST),
        Expr::protocol(after(address)),
        Expr::destination_port(after(address + 4)),
    ]
}

fn any_of(key: CtKey, bits: u32) -> Vec<Expr> {
    vec![
        Expr::Ct {
            key,
            into: Reg::FIRST,
        },
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: Value::new().number(bits),
            xor: Value::new().number(0),
        },
        Expr::not_equal(Reg::FIRST, Value::new().number(0)),
    ]
}

fn change_mark(mask: u32, xor: u32) -> Vec<Expr> {
    vec![
        Expr::Meta {
            key: MetaKey::Mark,
            into: Reg::FIRST,
        },
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: Value::new().number(mask),
            xor: Value::new().number(xor),
        },
        Expr::SetMeta {
            key: MetaKey::Mark,
            from: Reg::FIRST,
        },
    ]
}

fn local(flags: u32) -> Vec<Expr> {
    vec![
        Expr::Fib {
            result: FibResult::AddressType,
            flags,
            into: Reg::FIRST,
        },
        Expr::equal(Reg::FIRST, Value::new().number(ADDRESS_LOCAL)),
    ]
}

fn to_endpoint(family: Family, port: Reg) -> Expr {
    Expr::Nat {
        kind: NatKind::Destination,
        family,
        address: Some(Reg::FIRST),
        port: Some(port),
        flags: 0,
    }
}

fn random(modulus: u32, into: Reg) -> Expr {
    Expr::Numgen {
        kind: NumgenKind::Random,
        modulus,
        offset: 0,
        into,
    }
}

fn rules(family: Family) -> Vec<Rule> {
    let mut rules = dispatch(family);
    rules.extend(masquerade(family));
    rules.extend(choose(family));
    rules
}

fn dispatch(family: Family) -> Vec<Rule> {
    let new = |chain: &str, to: &str| {
        let mut expressions = any_of(CtKey::State, CT_NEW);
        expressions.push(jump(to));
        Rule::new(chain, expressions)
    };
    let by_frontend = |chain: &str, set: &str| {
        let mut expressions = frontend(family);
        expressions.push(lookup(set, Reg::FIRST, Found::Verdict));
        Rule::new(chain, expressions)
    };
    let mut node_port = local(FIB_DESTINATION);
    node_port.extend(match family {
        // Of a network of whole bytes only those are loaded.
        Family::V4 => [
            Expr::Payload {
                base: Base::Network,
                offset: 16,
                len: 1,
                into: Reg::FIRST,
            },
            Expr::not_equal(Reg::FIRST, Value::new().field(&[127])),
        ],
        Family::V6 => [
            Expr::destination_address(family, Reg::FIRST),
            Expr::not_equal(Reg::FIRST, IpAddr::from(Ipv6Addr::LOCALHOST).into()),
        ],
    });
    node_port.extend([
        Expr::protocol(Reg::FIRST),
        Expr::destination_port(Reg::new(1)),
        lookup("service-nodeports", Reg::FIRST, Found::Verdict),
    ]);
    let inside = |found| {
        vec![
            Expr::destination_address(family, Reg::FIRST),
            lookup("service-cidrs", Reg::FIRST, found),
        ]
    };
    let mut unallocated = inside(Found::Present);
    unallocated.push(Expr::Verdict(Verdict::Drop));
    let address = family.address_len();
    let mut firewall = frontend(family);
    firewall.extend([
        Expr::source_address(family, after(address + 8)),
        lookup("firewall-allow", Reg::FIRST, Found::Absent),
        Expr::Counter {
            packets: 0,
            bytes: 0,
        },
        Expr::Verdict(Verdict::Drop),
    ]);
    vec![
        new("filter-pre-dnat", "firewall-check"),
        new("filter-forward", "cluster-ips-check"),
        Rule::new("nat-prerouting", vec![jump("services")]),
        Rule::new("nat-output", vec![jump("services")]),
        Rule::new("nat-postrouting", vec![jump("masquerading")]),
        by_frontend("services", "service-ips"),
        Rule::new("services", node_port),
        Rule::new("cluster-ips-check", unallocated)
            .comment("Drop traffic to unallocated ClusterIPs"),
        Rule::new("firewall-check", firewall),
        Rule::new(
            "reject-chain",
            vec![Expr::Reject(Reject::port_unreachable(family))],
        ),
    ]
}

fn masquerade(family: Family) -> Vec<Rule> {
    let masquerade = Expr::Masquerade {
        flags: NAT_FULLY_RANDOM,
    };
    let mut marked = vec![
        Expr::Meta {
            key: MetaKey::Mark,
            into: Reg::FIRST,
        },
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: Value::new().number(MARK),
            xor: Value::new().number(0),
        },
        Expr::not_equal(Reg::FIRST, Value::new().number(0)),
    ];
    marked.extend(change_mark(u32::MAX, MARK));
    marked.push(masquerade.clone());
    let address = family.address_len();
    let mut hairpin = any_of(CtKey::Status, CT_DNAT);
    hairpin.extend([
        Expr::source_address(family, Reg::FIRST),
        Expr::destination_address(family, after(address)),
        Expr::protocol(after(2 * address)),
        Expr::destination_port(after(2 * address + 4)),
        lookup("hairpin-connections", Reg::FIRST, Found::Present),
        masquerade,
    ]);
    let mut from_outside = vec![
        Expr::Meta {
            key: MetaKey::InputName,
            into: Reg::FIRST,
        },
        Expr::not_equal(Reg::FIRST, Value::new().interface("cni0")),
        Expr::Meta {
            key: MetaKey::InputName,
            into: Reg::FIRST,
        },
        // A prefix is compared as far as it goes.
        Expr::not_equal(Reg::FIRST, Value::new().field(b"veth")),
    ];
    from_outside.extend(change_mark(!MARK, MARK));
    let mut from_here = local(FIB_SOURCE);
    from_here.extend(change_mark(!MARK, MARK));
    vec![
        Rule::new("masquerading", marked),
        Rule::new("masquerading", hairpin),
        Rule::new("mark-for-masquerade", from_outside).comment("masquerade"),
        Rule::new("mark-for-masquerade", from_here).comment("masquerade local traffic"),
    ]
}

fn choose(family: Family) -> Vec<Rule> {
    let address = family.address_len();
    let slot = |choice: Vec<Expr>| {
        let mut expressions = frontend(family);
        expressions.extend(choice);
        expressions.extend([
            lookup("endpoints", Reg::FIRST, Found::Value(Reg::FIRST)),
            to_endpoint(family, after(address)),
        ]);
        expressions
    };
    let by_port = vec![
        Expr::source_port(Reg::new(8)),
        Expr::Hash {
            from: Reg::new(8),
            len: 2,
            modulus: 2,
            seed: 1,
            offset: 0,
            into: after(address + 8),
        },
    ];
    let fixed = vec![
        Expr::protocol(Reg::FIRST),
        Expr::equal(Reg::FIRST, Value::new().protocol(TCP)),
        Expr::Load {
            value: self::address(family, 1, 1).into(),
            into: Reg::FIRST,
        },
        Expr::Load {
            value: Value::new().port(8080),
            into: Reg::new(4),
        },
        to_endpoint(family, Reg::new(4)),
    ];
    vec![
        Rule::new("pick-2", slot(vec![random(2, after(address + 8))])),
        Rule::new("hash-2", slot(by_port)),
        Rule::new(
            "affinity",
            vec![
                Expr::source_address(family, Reg::FIRST),
                Expr::Dynset {
                    set: "affinity-one".into(),
                    op: DynsetOp::Update,
                    key: Reg::FIRST,
                    data: None,
                    timeout: None,
                },
                goto("sticky-2"),
            ],
        ),
        Rule::new("sticky-2", fixed),
    ]
}
