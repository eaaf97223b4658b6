//! Opens lanes, holds ports and programs portals, in this order; and takes them back in the
//! opposite one, so that no rule ever leads to a port on which nobody listens.
//!
//! In: [`Work`]. What is remembered is the plan and the proxy ports of every Service port, so that
//! a change costs what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ferrule_core::desired::Exposure;
use ferrule_core::model::{Family, PortKey, Protocol};

use super::Options;
use super::chains::{self, PortalChains};
use super::claims;
use super::firewall::Firewall;
use super::flows::StaleFlows;
use super::handover::Purpose;
use super::plan::{self, Change, Plan, Portal, Served};
use super::process::Process;
use super::relay::{Class, Key, Listen, Notice};
use super::table::{PortalTable, Redrawn};
use super::transparent::{self, Answers};
use super::{PortalsBy, render, wildcard};
use crate::{
    Applied, ApplyError, Dataplane, Refusal, RuleCount, Scope, Watcher, Work, error_chain,
};

/// Relays one family's connections.
#[derive(Debug)]
pub struct Userspace {
    family: Family,
    options: Options,
    process: Arc<Process>,
    portals: Portals,
    flows: StaleFlows,
    answers: Answers,
    /// The addresses of the node with NodePorts.
    node: Vec<IpAddr>,
    served: BTreeMap<PortKey, Served>,
    /// Service ports that may have something that they do not need any more.
    closing: BTreeSet<PortKey>,
    /// Service ports that are not as they should be, and why.
    refused: BTreeMap<PortKey, String>,
}

/// What leads to proxy ports.
#[derive(Debug)]
enum Portals {
    Nftables(PortalTable, Firewall),
    Iptables(PortalChains),
}

impl Userspace {
    /// Opens what one family needs in the network namespace of the calling thread. Nothing is
    /// written.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(family: Family, options: Options, process: Arc<Process>) -> io::Result<Self> {
        if options.transparent {
            transparent::probe(family)?;
        }
        let portals = match options.portals {
            PortalsBy::Nftables => Portals::Nftables(
                PortalTable::open(family)?.transparent(options.transparent),
                Firewall::open(family, options.mark),
            ),
            PortalsBy::Iptables => Portals::Iptables(PortalChains::open(family)?.recall()),
        };
        Ok(Self {
            family,
            options,
            process,
            portals,
            flows: StaleFlows::open(family)?,
            answers: Answers::open(family)?,
            node: Vec::new(),
            served: BTreeMap::new(),
            closing: BTreeSet::new(),
            refused: BTreeMap::new(),
        })
    }

    fn key(&self, port: &PortKey) -> Key {
        Key {
            port: port.clone(),
            family: self.family,
        }
    }

    /// The Service ports to look at, and what they are to be.
    fn changes<'a>(&self, work: &Work<'a>) -> BTreeMap<PortKey, Option<&'a Arc<Exposure>>> {
        let Scope::Delta(delta) = work.scope else {
            let gone = self.served.keys().chain(self.refused.keys());
            let gone = gone.map(|key| (key.clone(), None));
            let all = work.desired.exposures(self.family).into_iter();
            return gone
                .chain(all.map(|exposure| (exposure.key.clone(), Some(exposure))))
                .collect();
        };
        // What failed is tried again whenever anything changes.
        let again = self.refused.keys();
        let again = again
            .filter(|key| plan::is_relayed(key.protocol))
            .map(|key| {
                let exposure = work.desired.exposure(self.family, key);
                (key.clone(), exposure)
            });
        let changed = delta.changes.keys().map(|key| {
            let exposure = work.desired.exposure(self.family, key);
            (key.clone(), exposure)
        });
        again.chain(changed).collect()
    }

    /// Opens what a Service port needs beyond what it has. Nothing is closed.
    fn prepare(&mut self, key: &PortKey, exposure: Option<&Exposure>, local: &[IpAddr]) -> Served {
        let mut served = self.served.get(key).cloned().unwrap_or_default();
        self.refused.remove(key);
        self.closing.insert(key.clone());
        let Some(exposure) = exposure else {
            served.plan = Plan::default();
            return served;
        };
        served.plan = plan::plan(exposure);
        if !plan::is_relayed(key.protocol) {
            let message = format!("{} cannot be relayed; its addresses refuse", key.protocol);
            self.refused.insert(key.clone(), message);
            return served;
        }
        let relayed = self.key(key);
        for class in self.lanes(&served.plan) {
            if served.ports.contains_key(&class) {
                continue;
            }
            let address = self.address();
            let listen = Listen {
                socket: self.process.inherited_lane(&relayed, class, address),
                prefer: self.port_before(key, &served.plan, class),
                address,
            };
            match self.process.relay().open(&relayed, class, listen) {
                Ok(port) => drop(served.ports.insert(class, port)),
                Err(error) => {
                    self.refused.insert(key.clone(), error_chain(&error));
                }
            }
        }
        if !served.ports.is_empty() {
            let before = self.served.get(key);
            let before = before.filter(|before| !before.ports.is_empty());
            if before.is_none_or(|before| before.plan.backends != served.plan.backends) {
                let backends = served.plan.backends.clone();
                self.process.relay().set(&relayed, backends);
            }
        }
        self.claim(key, &mut served, local);
        served
    }

    /// Holds ports of the node. A portal whose port another process has stays closed: that process
    /// would never know where its connections went.
    fn claim(&mut self, key: &PortKey, served: &mut Served, local: &[IpAddr]) {
        let mut claims = self.process.claims(self.family);
        for claim in claims::wanted(key, &served.plan, local) {
            let inherited = self.process.inherited(&Purpose::Claim(self.family, claim));
            match claims.hold(claim, key, inherited) {
                Ok(()) => drop(served.claims.insert(claim)),
                Err(error) => {
                    let port = claim.port;
                    let at = claim.ip.map_or_else(String::new, |ip| format!(" of {ip}"));
                    let err = error_chain(&error);
                    self.refused
                        .insert(key.clone(), format!("cannot hold port {port}{at}: {err}"));
                    served
                        .plan
                        .portals
                        .retain(|portal| (portal.ip, portal.port) != (claim.ip, claim.port));
                }
            }
        }
    }

    /// Lanes that must be open. iptables has no rule that refuses an address on whatever way packets
    /// take, so there a lane without endpoints resets its connections.
    fn lanes(&self, plan: &Plan) -> BTreeSet<Class> {
        match &self.portals {
            Portals::Nftables(..) => plan.lanes(),
            Portals::Iptables(_) => plan.portals.iter().map(Portal::class).collect(),
        }
    }

    /// The proxy port that an earlier process had, if rules still tell.
    fn port_before(&self, key: &PortKey, plan: &Plan, class: Class) -> Option<u16> {
        let Portals::Iptables(chains) = &self.portals else {
            return None;
        };
        let mut portals = plan.portals.iter().filter(|portal| portal.class() == class);
        portals.find_map(|portal| chains.port_before(key.protocol, portal))
    }

    /// Where lanes listen.
    fn address(&self) -> IpAddr {
        let wildcard = wildcard(self.family);
        self.options.bind_ip(self.family).unwrap_or(wildcard)
    }

    /// Closes what a Service port has beyond what it needs.
    fn release(&mut self, key: &PortKey, local: &[IpAddr]) {
        let Some(mut served) = self.served.remove(key) else {
            return;
        };
        let relayed = self.key(key);
        let wanted = claims::wanted(key, &served.plan, local);
        for claim in served.claims.difference(&wanted) {
            self.process.claims(self.family).release(*claim, key);
        }
        served.claims.retain(|claim| wanted.contains(claim));
        served.ports.retain(|class, _| {
            let keeps = served.plan.keeps(*class);
            if !keeps {
                self.process.relay().close(&relayed, *class);
            }
            keeps
        });
        if served != Served::default() {
            self.served.insert(key.clone(), served);
        }
    }

    /// Makes rules lead to what is open. Returns the number of steps, and how many rules there are
    /// in modes that count them.
    fn program(
        &mut self,
        work: &Work<'_>,
        changes: &[Change],
    ) -> Result<(usize, Vec<RuleCount>), ApplyError> {
        let facts = work.desired.facts(self.family);
        let full = matches!(work.scope, Scope::Full);
        match &mut self.portals {
            Portals::Nftables(table, firewall) => {
                let statics = render::statics(facts, self.family, &self.options);
                let draw = |key, served: &Served| render::drawing(key, served);
                let redrawn: Vec<_> = if table.needs_all() {
                    let all = self.served.iter();
                    all.map(|(key, served)| Redrawn {
                        before: Vec::new(),
                        after: draw(key, served),
                    })
                    .collect()
                } else {
                    let changes = changes.iter();
                    changes
                        .map(|change| Redrawn {
                            before: draw(&change.key, &change.before),
                            after: draw(&change.key, &change.after),
                        })
                        .collect()
                };
                let accepted = if full { firewall.ensure() } else { 0 };
                let steps = table.update(statics, &redrawn)?;
                Ok((steps + accepted, Vec::new()))
            }
            Portals::Iptables(chains) => {
                let context = chains::Context::new(self.family, facts, &self.options);
                chains.update(context, changes, &self.served, full)
            }
        }
    }

    /// Has answers to connections with a client's address come here, or removes what an earlier
    /// process did for that. Without it endpoints see the node's address. Returns the number of steps.
    fn bring_answers(&mut self) -> usize {
        let wanted = self.options.transparent;
        let changed = if wanted {
            self.answers.ensure()
        } else {
            self.answers.remove()
        };
        let relay = self.process.relay();
        relay.set_answered(self.family, wanted && changed.is_ok());
        changed.unwrap_or_else(|error| {
            // What is not wanted leads nobody anywhere, as nothing has the mark.
            if wanted {
                self.process.report(Notice::Transparent {
                    family: self.family,
                    error: io::Error::other(error),
                });
            }
            0
        })
    }

    /// Removes UDP flows that lead elsewhere than their address does now.
    fn clear_flows(&mut self, changes: &[Change], work: &Work<'_>) {
        let udp = |change: &&Change| change.key.protocol == Protocol::Udp;
        let leading = changes.iter().filter(udp).map(|change| {
            let of = |served: &Served| served.leads().collect::<BTreeMap<_, _>>();
            (of(&change.before), of(&change.after))
        });
        let (before, after): (Vec<_>, Vec<_>) = leading.unzip();
        let after: BTreeMap<_, _> = after.into_iter().flatten().collect();
        for (address, _) in before.into_iter().flatten() {
            if !after.contains_key(&address) {
                self.flows.lead(address, None);
            }
        }
        for (address, to) in after {
            self.flows.lead(address, to);
        }
        let node_ports = &work.desired.facts(self.family).node_ports;
        self.node = node_ports.among(work.local, self.family);
        // What could not be removed is tried again with the next change; until then it times out.
        _ = self.flows.clear(&self.node);
    }
}

impl Dataplane for Userspace {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        let process = Arc::clone(&self.process);
        // While a successor gets ready nothing changes.
        let _turn = process.turn();
        process.inherit();
        let facts = work.desired.facts(self.family);
        self.process.set_inside(self.family, facts, work.local);
        let mut steps = 0;
        let mut changes = Vec::new();
        for (key, exposure) in self.changes(work) {
            let before = self.served.get(&key).cloned().unwrap_or_default();
            let after = self.prepare(&key, exposure.map(|exposure| &**exposure), work.local);
            if before != after {
                steps += usize::from(before.plan.backends != after.plan.backends);
                // Noted before any rule is written: what is open must not be forgotten if that fails.
                self.served.insert(key.clone(), after.clone());
                changes.push(Change { key, before, after });
            }
        }
        let (written, rules) = self.program(work, &changes)?;
        let closing = std::mem::take(&mut self.closing);
        for key in closing {
            self.release(&key, work.local);
        }
        self.clear_flows(&changes, work);
        let answers = match work.scope {
            // After its rules, by which alone it makes sense.
            Scope::Full => self.bring_answers(),
            Scope::Delta(_) => 0,
        };
        let refused = self.refused.iter();
        Ok(Applied {
            steps: steps + written + answers,
            rules,
            refused: refused
                .map(|(key, message)| Refusal {
                    key: key.clone(),
                    message: message.clone(),
                })
                .collect(),
            ..Applied::default()
        })
    }

    /// Removes portals and stops listening.
    fn remove(&mut self) -> Result<Applied, ApplyError> {
        let mut steps = match &mut self.portals {
            Portals::Nftables(table, firewall) => table.remove()? + firewall.remove(),
            Portals::Iptables(chains) => chains.remove()?,
        };
        steps += self.answers.remove().unwrap_or(0);
        for key in std::mem::take(&mut self.served).into_keys() {
            self.process.relay().remove(&self.key(&key));
        }
        self.process.claims(self.family).clear();
        Ok(Applied::steps(steps))
    }

    /// Removes portals and stops listening. Connections go on, with the endpoints they have. What a
    /// successor uses too is left to it.
    fn withdraw(&mut self) -> Result<Applied, ApplyError> {
        let process = Arc::clone(&self.process);
        let _turn = process.turn();
        let replaced = process.is_replaced();
        let steps = match &mut self.portals {
            Portals::Nftables(table, _) if replaced => table.remove()?,
            Portals::Nftables(table, firewall) => table.clear()? + firewall.remove(),
            Portals::Iptables(_) if replaced => 0,
            Portals::Iptables(chains) => chains.remove()?,
        };
        if replaced {
            process.relay().leave_family(self.family);
        } else {
            process.relay().close_family(self.family);
            // What could not be removed times out.
            _ = self.flows.abandon(&self.node);
        }
        self.served.clear();
        process.claims(self.family).clear();
        Ok(Applied::steps(steps))
    }

    fn drain(&mut self) {
        self.process.drain();
        // Those that were open needed it.
        if !self.process.is_replaced() {
            // What could not be removed leads nobody anywhere.
            _ = self.answers.remove();
        }
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        match &mut self.portals {
            // Nobody else can change the table.
            Portals::Nftables(_, firewall) => firewall.watch(),
            Portals::Iptables(chains) => chains.watch(),
        }
    }
}
