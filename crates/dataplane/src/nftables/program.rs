//! What rules do, expression by expression.
//!
//! Registers are of four bytes: an IPv4 address fills one, an IPv6 address four. Programs that
//! `nft` has words for are written as it would write them, so that it lists them well.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use ferrule_core::desired::Endpoint;
use ferrule_core::facts::Detector;
use ferrule_kernel::Family;
use ferrule_kernel::nft::expr::{
    ADDRESS_LOCAL, CT_DNAT, CT_NEW, CtKey, DynsetOp, FIB_DESTINATION, FIB_SOURCE, FibResult, Found,
    MetaKey, NatKind, NumgenKind,
};
use ferrule_kernel::nft::{Expr, Name, Reg, Rule, Value, Verdict};
use ipnet::IpNet;

use super::names::{Container, Draw, MatchKey, Pick};

/// Longest name of an interface.
const LONGEST_INTERFACE: usize = 15;

/// Registers that an address fills.
pub const fn words(family: Family) -> u8 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}

fn number(number: u32) -> Value {
    Value::new().number(number)
}

/// Looks up what is in the first registers.
pub fn lookup(set: Container, key: Reg, found: Found) -> Expr {
    Expr::Lookup {
        set: set.name().into(),
        key,
        found,
    }
}

/// Sends packets to another chain.
pub fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.into()))
}

/// Passes packets whose destination address is in a set, or is not.
pub fn destination_in(family: Family, set: Container) -> [Expr; 2] {
    [
        Expr::destination_address(family, Reg::FIRST),
        lookup(set, Reg::FIRST, Found::Present),
    ]
}

/// Passes packets of this match key that are in a map, to where it leads.
pub fn dispatch(family: Family, match_key: MatchKey, map: Container) -> Vec<Expr> {
    let mut program = load_key(family, match_key);
    program.push(lookup(map, Reg::FIRST, Found::Verdict));
    program
}

/// The registers that [`load_key`] fills.
const fn key_registers(family: Family, match_key: MatchKey) -> u8 {
    match match_key {
        MatchKey::Address => words(family) + 2,
        MatchKey::NodePort => 2,
    }
}

/// Loads what tells packets of this match key apart.
pub fn load_key(family: Family, match_key: MatchKey) -> Vec<Expr> {
    load_key_at(family, match_key, 0)
}

/// The same into the registers from this one on.
pub fn load_key_at(family: Family, match_key: MatchKey, first: u8) -> Vec<Expr> {
    let ports = |from| {
        [
            Expr::protocol(Reg::new(from)),
            Expr::destination_port(Reg::new(from + 1)),
        ]
    };
    match match_key {
        MatchKey::NodePort => ports(first).into(),
        MatchKey::Address => {
            let mut program = vec![Expr::destination_address(family, Reg::new(first))];
            program.extend(ports(first + words(family)));
            program
        }
    }
}

/// Passes packets that begin a connection.
pub fn is_new() -> Vec<Expr> {
    any_bit(
        Expr::Ct {
            key: CtKey::State,
            into: Reg::FIRST,
        },
        CT_NEW,
    )
}

/// Passes packets of connections whose destination was translated.
pub fn is_translated() -> Vec<Expr> {
    any_bit(
        Expr::Ct {
            key: CtKey::Status,
            into: Reg::FIRST,
        },
        CT_DNAT,
    )
}

/// Passes packets that carry the mark.
pub fn is_marked(mark: u32) -> Vec<Expr> {
    any_bit(load_mark(), mark)
}

fn any_bit(load: Expr, bits: u32) -> Vec<Expr> {
    vec![
        load,
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: number(bits),
            xor: number(0),
        },
        Expr::not_equal(Reg::FIRST, number(0)),
    ]
}

const fn load_mark() -> Expr {
    Expr::Meta {
        key: MetaKey::Mark,
        into: Reg::FIRST,
    }
}

/// Sets the mark; other bits stay.
pub fn set_mark(mark: u32) -> [Expr; 3] {
    change_mark(!mark, mark)
}

/// Turns the mark around; other bits stay.
pub fn flip_mark(mark: u32) -> [Expr; 3] {
    change_mark(u32::MAX, mark)
}

fn change_mark(mask: u32, xor: u32) -> [Expr; 3] {
    [
        load_mark(),
        Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: number(mask),
            xor: number(xor),
        },
        Expr::SetMeta {
            key: MetaKey::Mark,
            from: Reg::FIRST,
        },
    ]
}

/// Passes packets from an address of this machine.
pub fn from_here() -> [Expr; 2] {
    fib_local(FIB_SOURCE)
}

/// Passes packets to an address of this machine.
pub fn to_here() -> [Expr; 2] {
    fib_local(FIB_DESTINATION)
}

fn fib_local(flags: u32) -> [Expr; 2] {
    [
        Expr::Fib {
            result: FibResult::AddressType,
            flags,
            into: Reg::FIRST,
        },
        Expr::equal(Reg::FIRST, number(ADDRESS_LOCAL)),
    ]
}

/// Passes packets that are not to a loopback address.
pub fn not_to_loopback(family: Family) -> Vec<Expr> {
    let loopback = match family {
        Family::V4 => IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    };
    let load = Expr::destination_address(family, Reg::FIRST);
    in_net(load, &loopback, false)
}

fn in_net(mut load: Expr, net: &IpNet, inside: bool) -> Vec<Expr> {
    let value = Value::from(net.network());
    let bits = net.prefix_len();
    // Of a network of whole bytes only those are loaded.
    if let (1.., true, Expr::Payload { len, .. }) = (bits, bits.is_multiple_of(8), &mut load) {
        *len = u32::from(bits / 8);
        let beginning = &value.as_bytes()[..usize::from(bits / 8)];
        return vec![load, compare(Value::new().field(beginning), inside)];
    }
    let mut program = vec![load];
    if bits < net.max_prefix_len() {
        let zeros = [0; 16];
        let zeros = &zeros[..value.as_bytes().len()];
        program.push(Expr::Bitwise {
            from: Reg::FIRST,
            into: Reg::FIRST,
            mask: Value::from(net.netmask()),
            xor: Value::new().field(zeros),
        });
    }
    program.push(compare(value, inside));
    program
}

const fn compare(value: Value, equal: bool) -> Expr {
    if equal {
        Expr::equal(Reg::FIRST, value)
    } else {
        Expr::not_equal(Reg::FIRST, value)
    }
}

/// Passes packets from pods, or all others; `None` if there can be no such packet.
pub fn from_pod(family: Family, detector: &Detector, pod: bool) -> Option<Vec<Expr>> {
    let (name, whole) = match detector {
        Detector::Source(net) => {
            let load = Expr::source_address(family, Reg::FIRST);
            return Some(in_net(load, net, pod));
        }
        Detector::Interface(name) => (name, true),
        Detector::InterfacePrefix(prefix) => (prefix, false),
    };
    // No interface has such a name: nothing comes from pods, and everything from elsewhere.
    if name.len() > LONGEST_INTERFACE {
        return (!pod).then(Vec::new);
    }
    // Every interface begins with nothing.
    if name.is_empty() && !whole {
        return pod.then(Vec::new);
    }
    let value = if whole {
        Value::new().interface(name)
    } else {
        Value::new().field(name.as_bytes())
    };
    let load = Expr::Meta {
        key: MetaKey::InputName,
        into: Reg::FIRST,
    };
    Some(vec![load, compare(value, pod)])
}

/// The rules of a chain that chooses an endpoint.
pub fn pick(family: Family, pick: &Pick, mark: u32) -> Vec<Rule> {
    let chain = pick.name();
    let mut rules = Vec::new();
    let mut rule = |program: Vec<Expr>| rules.push(Rule::new(Name::clone(&chain), program));
    if pick.masquerade {
        rule(set_mark(mark).into());
    }
    match pick.draw {
        Draw::Exactly(slots) => rule(draw(family, pick, slots.get())),
        Draw::UpTo(slots) => {
            for _ in 0..DRAWS {
                rule(draw(family, pick, slots.get()));
            }
            rule(draw(family, pick, slots.get() / 2));
        }
    }
    // For a packet that met a change half way: the slot that it drew is no more, but the first
    // one is.
    if pick.draw != Draw::Exactly(NonZeroU32::MIN) {
        rule(draw(family, pick, 1));
    }
    rules
}

/// How often a packet draws from slots of which up to a half are empty, before it draws from the
/// lower half, where none is. An endpoint of the upper half gets less than its share by at most one
/// part in two to the power of this.
const DRAWS: usize = 10;

/// Translates to one of the endpoints in so many slots, unless that slot is empty.
fn draw(family: Family, pick: &Pick, slots: u32) -> Vec<Expr> {
    let mut program = load_key(family, pick.match_key);
    let endpoints = pick
        .match_key
        .choose(Container::Endpoints, Container::NodePortEndpoints);
    program.extend([
        Expr::Numgen {
            kind: NumgenKind::Random,
            modulus: slots,
            offset: pick.first,
            into: Reg::new(key_registers(family, pick.match_key)),
        },
        lookup(endpoints, Reg::FIRST, Found::Value(Reg::FIRST)),
        translate(family, Reg::FIRST, Reg::new(words(family))),
    ]);
    program
}

/// Where clients of one endpoint are remembered, and the chain that leads there.
#[derive(Clone, Debug)]
pub struct Stay {
    /// The set of clients.
    pub set: Name,
    /// The chain.
    pub chain: Name,
}

/// The rules of a chain whose clients stay with their endpoint: first those who are remembered,
/// then the others draw.
pub fn stay(family: Family, chain: &Name, endpoints: &[Stay]) -> Vec<Rule> {
    let rule = |program: Vec<Expr>| Rule::new(Name::clone(chain), program);
    let goto = |stay: &Stay| Expr::Verdict(Verdict::Goto(Name::clone(&stay.chain)));
    let known = endpoints.iter().map(|stay| {
        rule(vec![
            Expr::source_address(family, Reg::FIRST),
            lookup_own(&stay.set, Found::Present),
            goto(stay),
        ])
    });
    let lefts = (1..=endpoints.len()).rev();
    let drawn = endpoints.iter().zip(lefts).map(|(stay, left)| {
        let mut program = Vec::new();
        if left > 1 {
            program.extend([
                Expr::Numgen {
                    kind: NumgenKind::Random,
                    modulus: u32::try_from(left).unwrap_or(u32::MAX),
                    offset: 0,
                    into: Reg::FIRST,
                },
                Expr::equal(Reg::FIRST, number(0)),
            ]);
        }
        program.push(goto(stay));
        rule(program)
    });
    known.chain(drawn).collect()
}

/// The rules of the chain that leads to one endpoint, and remembers who went there for so long.
pub fn stay_with(
    family: Family,
    stay: &Stay,
    protocol: u8,
    endpoint: &Endpoint,
    time: Duration,
) -> Vec<Rule> {
    let rule = |program: Vec<Expr>| Rule::new(Name::clone(&stay.chain), program);
    let remember = Expr::Dynset {
        set: Name::clone(&stay.set),
        op: DynsetOp::Update,
        key: Reg::FIRST,
        data: None,
        timeout: Some(time),
    };
    // Where there is no room left the first rule ends early. So the second one is another rule, and
    // who cannot be remembered is served where the draw said.
    vec![
        rule(vec![Expr::source_address(family, Reg::FIRST), remember]),
        rule(translate_to(family, protocol, endpoint).into()),
    ]
}

/// The rule of the chain that drops all but these sources.
pub fn allow_only(family: Family, chain: &Name, sources: &Name) -> Rule {
    let program = vec![
        Expr::source_address(family, Reg::FIRST),
        lookup_own(sources, Found::Absent),
        Expr::Verdict(Verdict::Drop),
    ];
    Rule::new(Name::clone(chain), program)
}

/// The rules of the same chain for a few networks, each compared by itself.
pub fn allow_few(family: Family, chain: &Name, sources: &[IpNet]) -> Vec<Rule> {
    let rule = |program: Vec<Expr>| Rule::new(Name::clone(chain), program);
    let allowed = sources.iter().map(|net| {
        let mut program = in_net(Expr::source_address(family, Reg::FIRST), net, true);
        program.push(Expr::Verdict(Verdict::Return));
        rule(program)
    });
    let drop = rule(vec![Expr::Verdict(Verdict::Drop)]);
    allowed.chain(std::iter::once(drop)).collect()
}

fn lookup_own(set: &Name, found: Found) -> Expr {
    Expr::Lookup {
        set: Name::clone(set),
        key: Reg::FIRST,
        found,
    }
}

/// All packets here are of this protocol, but `nft` accepts a port only behind a match on the protocol.
fn translate_to(family: Family, protocol: u8, endpoint: &Endpoint) -> [Expr; 5] {
    let port = Reg::new(4);
    [
        Expr::protocol(Reg::FIRST),
        Expr::equal(Reg::FIRST, Value::new().protocol(protocol)),
        Expr::Load {
            value: endpoint.ip.into(),
            into: Reg::FIRST,
        },
        Expr::Load {
            value: Value::new().port(endpoint.port.get()),
            into: port,
        },
        translate(family, Reg::FIRST, port),
    ]
}

const fn translate(family: Family, address: Reg, port: Reg) -> Expr {
    Expr::Nat {
        kind: NatKind::Destination,
        family,
        address: Some(address),
        port: Some(port),
        flags: 0,
    }
}
