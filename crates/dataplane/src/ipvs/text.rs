//! Everything as text for the tools that administrators use: `ipvsadm --restore`, `ipset restore` and
//! `iptables-restore`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ferrule_kernel::ipset::Type;
use ferrule_kernel::ipvs::{Server, ServerKey};

use super::conversation::ROOM;
use super::layout::LAYOUT;
use super::names::{LINK, Set};
use super::render::{Item, Service};
use super::wanted::Wanted;
use super::{Options, statics};
use crate::xtables::ruleset::Ruleset;
use crate::xtables::{diff, installed};

/// All of one family.
pub fn text(desired: &Desired, family: Family, options: &Options, local: &[IpAddr]) -> String {
    let facts = desired.facts(family);
    let (wanted, _) = Wanted::drawn(desired, family, options, local);
    let mut text = Text(String::new());
    text.line("# ipvsadm --restore");
    for (key, service) in wanted.servers() {
        text.server(key, service);
    }
    text.line(&format!("# addresses of {LINK}"));
    for item in wanted.items() {
        if let Item::Address(ip) = item {
            text.line(&format!("# {ip}"));
        }
    }
    text.line("# ipset restore");
    for set in Set::ALL {
        text.line(&create(set, family));
        for item in wanted.items() {
            if let Item::Entry(of, entry) = item
                && *of == set
            {
                text.line(&format!("add {} {entry}", set.name(family)));
            }
        }
    }
    text.line(match family {
        Family::V4 => "# iptables-restore --noflush",
        Family::V6 => "# ip6tables-restore --noflush",
    });
    let rules = statics::Context::new(family, options.mark, true, facts);
    let ruleset = Ruleset {
        statics: statics::build(&rules, &wanted.contents()),
        ..Ruleset::default()
    };
    let document = diff::full(&LAYOUT, &installed::Installed::new(family), &ruleset);
    text.0 + &document.text()
}

struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn server(&mut self, key: &ServerKey, service: &Service) {
        self.line(&server(key, service));
        for to in service.destinations.iter() {
            self.line(&destination(key, to));
        }
    }
}

/// A virtual server in the words of `ipvsadm`.
pub fn server(key: &ServerKey, service: &Service) -> String {
    let mut line = format!("-A {} -s {}", address(key), service.scheduler);
    if service.flags & Server::SCHEDULER_2 != 0 {
        line.push_str(" -b mh-port");
    }
    if service.flags & Server::PERSISTENT != 0 {
        write!(line, " -p {}", service.timeout).expect("a string takes all text");
    }
    line
}

/// A destination in the words of `ipvsadm`.
pub fn destination(key: &ServerKey, to: &SocketAddr) -> String {
    format!("-a {} -r {to} -m -w 1", address(key))
}

/// A set in the words of `ipset`.
pub fn create(set: Set, family: Family) -> String {
    let (name, kind) = (set.name(family), set.kind());
    let family = match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    };
    match kind {
        Type::BitmapPort => format!("create {name} {} range 0-65535", kind.name()),
        _ => format!(
            "create {name} {} family {family} hashsize 1024 maxelem {ROOM}",
            kind.name()
        ),
    }
}

/// The address of a virtual server in the words of `ipvsadm`.
pub fn address(key: &ServerKey) -> String {
    let option = match key.protocol {
        17 => "-u",
        132 => "--sctp-service",
        _ => "-t",
    };
    let socket = SocketAddr::new(key.address, key.port);
    format!("{option} {socket}")
}
