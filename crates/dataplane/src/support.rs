//! What the kernel of this machine has and can do, as text for whoever helps from afar.
//!
//! In: the network namespace of the calling thread. Out: [`Piece`]s, whatever the mode is: what another
//! mode left behind is often the answer. Nothing is written; what cannot be read says so in its place.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use ferrule_core::model::Family;
use ferrule_kernel::ipset::Ipset;
use ferrule_kernel::ipvs::{Ipvs, Listed};
use ferrule_kernel::nft::text::{self, NoSyntax};
use ferrule_kernel::nft::{Nft, Snapshot};
use ferrule_kernel::xt::{self, Flavour, Table, Xt};

use crate::host::{Addresses, Host};
use crate::nftables::{Opener, Options};
use crate::{error_chain, kernel_family, said};

pub mod flows;

/// A text and the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name, without a folder.
    pub name: String,
    /// What is in it.
    pub text: String,
}

impl Piece {
    fn new(name: impl Into<String>, text: io::Result<String>) -> Self {
        Self {
            name: name.into(),
            text: text.unwrap_or_else(|error| format!("# not read: {}\n", error_chain(&error))),
        }
    }
}

/// Settings that decide what becomes of packets, below `/proc/sys`.
const SETTINGS: [&str; 21] = [
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/vs/conntrack",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_acct",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_udp_timeout",
    "net/netfilter/nf_conntrack_udp_timeout_stream",
];

/// Modules whose presence matters begin so.
const MODULES: [&str; 8] = [
    "br_netfilter",
    "ip6_tables",
    "ip6t",
    "ip_",
    "ipt",
    "nf_",
    "nft_",
    "xt_",
];

/// What this kernel can do: for each mode what it needs, settings, modules.
pub fn abilities() -> Piece {
    let mut text = String::new();
    let mut say = |what: &str, how: String| _ = writeln!(text, "{what}: {how}");
    say("kernel", first_line("/proc/version"));
    let host = Host::default();
    let mut opener = Opener::new(Options::default());
    for family in Family::ALL {
        let there = host
            .check(family)
            .map_or_else(|why| why.to_string(), |()| "there".to_owned());
        say(family.as_str(), there);
        let rules = opener.open(family);
        let rules = rules.map_or_else(|error| error_chain(&error), |_| "supported".to_owned());
        say(&format!("nftables for {family}"), rules);
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            let found = Xt::open_for(flavour, kernel_family(family));
            let found = found.map_or_else(
                |error| error_chain(&error),
                |xt| format!("{:?}", xt.version()),
            );
            say(
                &format!("iptables{} for {family}", flavour.variant()),
                found,
            );
        }
    }
    say("IPVS", presence(Ipvs::open().map_err(said)));
    say("ipset", presence(Ipset::open()));
    for setting in SETTINGS {
        let value = first_line(Path::new("/proc/sys").join(setting));
        say(&setting.replace('/', "."), value);
    }
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let names = modules.lines().filter_map(|line| line.split(' ').next());
    let ours = names.filter(|name| MODULES.iter().any(|begin| name.starts_with(begin)));
    say("modules", ours.collect::<Vec<_>>().join(" "));
    Piece::new("abilities.txt", Ok(text))
}

/// Everything that some mode may have in the kernel, and the addresses of this machine.
pub fn listings() -> Vec<Piece> {
    let mut pieces = vec![Piece::new("addresses.txt", addresses())];
    for family in Family::ALL {
        let word = text::family(kernel_family(family));
        pieces.push(Piece::new(format!("nftables-{word}.txt"), nftables(family)));
        pieces.push(Piece::new(format!("iptables-{word}.txt"), iptables(family)));
    }
    pieces.push(Piece::new("ipset.txt", sets()));
    pieces.push(Piece::new("ipvs.txt", servers()));
    pieces
}

fn presence<T>(found: io::Result<Option<T>>) -> String {
    match found {
        Ok(Some(_)) => "supported".to_owned(),
        Ok(None) => "not there".to_owned(),
        Err(error) => error_chain(&error),
    }
}

fn first_line(path: impl AsRef<Path>) -> String {
    match std::fs::read_to_string(path) {
        Ok(text) => text.lines().next().unwrap_or_default().to_owned(),
        Err(error) => format!("({error})"),
    }
}

fn addresses() -> io::Result<String> {
    let all = Addresses::open()?.list();
    let lines: Vec<_> = all.iter().map(|ip| format!("{ip}\n")).collect();
    Ok(lines.concat())
}

/// The tables of kube-proxy and of ferrule, and the names of all others.
fn nftables(family: Family) -> io::Result<String> {
    let mut nft = Nft::open()?;
    let kernel = kernel_family(family);
    let mut text = String::new();
    for held in nft.tables(kernel).map_err(said)? {
        let name = &*held.object.name;
        let is_ours = ["kube-proxy", "ferrule"]
            .iter()
            .any(|begin| name.starts_with(begin));
        if !is_ours {
            _ = writeln!(
                text,
                "# table {} {name}: of another program",
                text::family(kernel)
            );
            continue;
        }
        match nft.snapshot(kernel, name).map_err(said)? {
            Some(snapshot) => write_table(&mut text, kernel, &snapshot),
            None => _ = writeln!(text, "# table {name} went while it was read"),
        }
    }
    Ok(text)
}

fn write_table(out: &mut String, family: ferrule_kernel::Family, snapshot: &Snapshot) {
    let lines = |lines: Result<Vec<String>, NoSyntax>| {
        lines.unwrap_or_else(|none| vec![format!("# {none}")])
    };
    let mut line = |depth: usize, text: &str| {
        out.extend(std::iter::repeat_n('\t', depth));
        out.push_str(text);
        out.push('\n');
    };
    let table = &snapshot.table.object;
    line(
        0,
        &format!("table {} {} {{", text::family(family), table.name),
    );
    if table.flags != 0 {
        line(1, &format!("# flags {:#x}", table.flags));
    }
    for held in &snapshot.sets {
        let set = &held.object;
        line(1, &format!("{} {} {{", text::set_word(set), set.name));
        for declared in lines(text::set(set)) {
            line(2, &declared);
        }
        match snapshot.elements.get(&set.name) {
            Some(elements) => {
                for element in lines(text::elements(set, elements)) {
                    line(2, &element);
                }
            }
            None => line(2, "# filled by packets"),
        }
        line(1, "}");
    }
    for held in &snapshot.chains {
        let chain = &held.object;
        line(1, &format!("chain {} {{", chain.name));
        for declared in lines(text::chain(chain)) {
            line(2, &declared);
        }
        let rules = snapshot.rules.iter().map(|held| &held.object);
        for rule in rules.filter(|rule| rule.chain == chain.name) {
            let words = text::rule(rule, family);
            line(2, &words.unwrap_or_else(|none| format!("# {none}")));
        }
        line(1, "}");
    }
    line(0, "}");
}

/// The tables of both flavours that exist: asking for another one would make it.
fn iptables(family: Family) -> io::Result<String> {
    let kernel = kernel_family(family);
    let mut tables = Vec::new();
    for table in xt::legacy_tables(kernel)? {
        tables.push((Flavour::Legacy, table));
    }
    let nft = Nft::open().and_then(|mut nft| nft.tables(kernel).map_err(said));
    // A kernel without nf_tables has none of them.
    for held in nft.unwrap_or_default() {
        let table = Table::from_name(&held.object.name);
        tables.extend(table.map(|table| (Flavour::Nft, table)));
    }
    let mut text = String::new();
    for (flavour, table) in tables {
        let saved = Xt::open_for(flavour, kernel).and_then(|xt| xt.save(table));
        match saved {
            Ok(saved) => _ = writeln!(text, "# iptables{}\n{saved}", flavour.variant()),
            Err(error) => _ = writeln!(text, "# {table} not read: {}", error_chain(&error)),
        }
    }
    Ok(text)
}

fn sets() -> io::Result<String> {
    let Some(mut sets) = Ipset::open()? else {
        return Ok("# this kernel has no sets\n".to_owned());
    };
    let mut text = String::new();
    for header in sets.headers().map_err(said)? {
        let (name, entries) = (&header.name, header.entries);
        _ = writeln!(text, "{name} {:?}: {entries} entries", header.kind);
        if !name.starts_with("KUBE-") {
            continue;
        }
        let listing = sets.list(name).map_err(said)?;
        for entry in listing.into_iter().flat_map(|listing| listing.entries) {
            _ = writeln!(text, "  {entry}");
        }
    }
    Ok(text)
}

fn servers() -> io::Result<String> {
    let Some(mut ipvs) = Ipvs::open().map_err(said)? else {
        return Ok("# this kernel has no IPVS\n".to_owned());
    };
    let mut text = String::new();
    for listed in ipvs.servers().map_err(said)? {
        let Listed::Server(server) = listed else {
            _ = writeln!(text, "# {listed:?}");
            continue;
        };
        let (key, scheduler) = (&server.key, &server.scheduler);
        let (flags, timeout) = (server.flags, server.timeout);
        _ = writeln!(text, "{key} {scheduler} flags {flags:#x} timeout {timeout}");
        for counted in ipvs.destinations(key).map_err(said)? {
            let to = counted.destination;
            let (active, inactive) = (counted.active, counted.inactive);
            _ = writeln!(
                text,
                "  -> {} port {} weight {} active {active} inactive {inactive}",
                to.address, to.port, to.weight
            );
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use ferrule_testbed::{feed, in_namespace, run};

    use super::*;

    fn piece<'a>(pieces: &'a [Piece], name: &str) -> &'a str {
        let found = pieces.iter().find(|piece| piece.name == name);
        &found.unwrap().text
    }

    #[test]
    fn tables_of_every_mode_are_listed_and_those_of_others_named() {
        in_namespace(|| {
            feed(
                "nft",
                &["-f", "-"],
                "table ip kube-proxy {\n\
                 map service-ips {\ntype ipv4_addr . inet_proto . inet_service : verdict\n\
                 elements = { 10.96.0.1 . tcp . 80 : drop }\n}\n\
                 chain odd {\nct state invalid drop\nmeta cpu 3 accept\n}\n}\n\
                 table ip firewall {\nchain secret {\nip saddr 192.0.2.1 drop\n}\n}\n",
            );
            run("iptables-nft", &["-t", "nat", "-N", "KUBE-SERVICES"]);
            let before = run("nft", &["list", "ruleset"]);
            let pieces = listings();
            let rules = piece(&pieces, "nftables-ip.txt");
            assert!(rules.contains("10.96.0.1 . tcp . 80 : drop"), "{rules}");
            assert!(rules.contains("chain odd {"), "{rules}");
            assert!(rules.contains("firewall: of another program"), "{rules}");
            assert!(!rules.contains("192.0.2.1"), "{rules}");
            let chains = piece(&pieces, "iptables-ip.txt");
            assert!(chains.contains(":KUBE-SERVICES"), "{chains}");
            assert!(piece(&pieces, "addresses.txt").contains("127.0.0.1"));
            assert_eq!(piece(&pieces, "iptables-ip6.txt"), "");
            let can = abilities().text;
            assert!(can.contains("nftables for IPv4: supported"), "{can}");
            assert!(can.contains("net.ipv4.ip_forward: "), "{can}");
            assert_eq!(
                run("nft", &["list", "ruleset"]),
                before,
                "nothing is written"
            );
        });
    }
}
