//! Renders Service ports as rules.
//!
//! In: one exposure at a time, and what all rules depend on. Out: [`PortRules`]. Each exposure is
//! rendered by itself, so that a change renders only what changed.

use std::net::IpAddr;

use ferrule_core::desired::{Action, Endpoint, Exposure, Frontend, FrontendKind, Masquerade, Pool};
use ferrule_core::facts::Detector;
use ferrule_core::model::{Family, Protocol, TrafficPolicy, format_socket};

use super::names::{self, Names, Role, Shared};
use super::statics::{self, RenderContext, loopback_v4};
use crate::xtables::chain::Chain;
use crate::xtables::rule::{Part, Place, Rule, Target};
use crate::xtables::ruleset::{PortRules, Ruleset};

/// Everything that is to be in the tables.
pub fn ruleset<'a>(
    exposures: impl IntoIterator<Item = &'a Exposure>,
    context: &RenderContext,
) -> Ruleset {
    let mut ruleset = Ruleset {
        statics: statics::build(context),
        ..Ruleset::default()
    };
    for exposed in exposures {
        ruleset.add(&exposed.key, exposure(exposed, context));
    }
    ruleset
}

/// What one Service port puts into the tables.
pub fn exposure(exposure: &Exposure, context: &RenderContext) -> PortRules {
    let mut renderer = Renderer {
        exposure,
        context,
        names: Names::new(&exposure.key),
        rules: PortRules::default(),
    };
    for frontend in &exposure.frontends {
        renderer.dispatch(frontend);
    }
    renderer.health_check();
    if renderer.reached() {
        renderer.external();
        renderer.firewall();
    }
    for pool in [Pool::Cluster, Pool::Local] {
        renderer.balance(pool);
    }
    renderer.endpoints();
    renderer.rules
}

struct Renderer<'a> {
    exposure: &'a Exposure,
    context: &'a RenderContext,
    names: Names,
    rules: PortRules,
}

const fn chooser(pool: Pool) -> Role {
    match pool {
        Pool::Cluster => Role::Cluster,
        Pool::Local => Role::Local,
    }
}

impl Renderer<'_> {
    fn put(&mut self, shared: Shared, shadowed: bool, rule: Rule) {
        self.rules.add(shared.at(), shadowed, rule);
    }

    fn chain(&mut self, role: Role, rules: Vec<Rule>) {
        self.rules.chains.insert(self.names.chain(role), rules);
    }

    fn comment(&self, rest: &str) -> Part {
        Part::Comment(format!("{}{rest}", self.names.label).into())
    }

    /// A comment about a single endpoint; too many of them are left out.
    fn small_comment(&self, rest: &str) -> Option<Part> {
        (!self.context.large).then(|| self.comment(rest))
    }

    /// Some endpoint somewhere could serve.
    fn reached(&self) -> bool {
        let actions = self.exposure.frontends.iter().map(|f| f.action);
        actions.clone().any(|action| action != Action::Reject)
    }

    fn externals(&self) -> impl Iterator<Item = &Frontend> {
        let frontends = self.exposure.frontends.iter();
        frontends.filter(|frontend| frontend.kind != FrontendKind::ClusterIp)
    }

    fn of_kind(&self, kind: FrontendKind) -> impl Iterator<Item = IpAddr> {
        let frontends = self.exposure.frontends.iter();
        frontends
            .filter(move |frontend| frontend.kind == kind)
            .filter_map(|frontend| frontend.ip)
    }

    fn guarded(&self) -> bool {
        !self.exposure.source_ranges.is_empty()
            && self.of_kind(FrontendKind::LoadBalancerIp).next().is_some()
    }

    /// Protocol, address and port of a frontend, in kube-proxy's order.
    fn address(&self, frontend: &Frontend) -> Vec<Part> {
        let mut parts = vec![Part::Protocol(self.exposure.key.protocol)];
        parts.extend(frontend.ip.map(|ip| Part::Destination(Place::Host(ip))));
        parts.push(Part::Port(frontend.port));
        parts
    }

    /// From an address to the chains that decide.
    fn dispatch(&mut self, frontend: &Frontend) {
        match frontend.kind {
            FrontendKind::ClusterIp => {
                if let Action::Balance(pool) = frontend.action {
                    let to = self.names.chain(chooser(pool));
                    self.jump(frontend, " cluster IP", to);
                } else {
                    self.refuse(Shared::RefusedServices, frontend);
                }
            }
            FrontendKind::ExternalIp => {
                if self.reached() {
                    let to = self.names.chain(Role::External);
                    self.jump(frontend, " external IP", to);
                }
                self.refuse(Shared::RefusedExternals, frontend);
            }
            FrontendKind::LoadBalancerIp => {
                if self.reached() {
                    let guarded = self.guarded();
                    let role = if guarded {
                        Role::Firewall
                    } else {
                        Role::External
                    };
                    let to = self.names.chain(role);
                    self.jump(frontend, " loadbalancer IP", to);
                    if guarded {
                        self.guard(frontend, to);
                    }
                }
                self.refuse(Shared::RefusedExternals, frontend);
            }
            FrontendKind::NodePort => {
                if self.reached() {
                    self.node_port(frontend);
                }
                self.refuse(Shared::RefusedExternals, frontend);
            }
        }
    }

    fn jump(&mut self, frontend: &Frontend, comment: &str, to: Chain) {
        let mut parts = vec![self.comment(comment)];
        parts.extend(self.address(frontend));
        let rule = Rule::new(parts, Target::Jump(to));
        self.put(Shared::Services, frontend.shadowed, rule);
    }

    fn guard(&mut self, frontend: &Frontend, by: Chain) {
        let mut parts = vec![self.comment(&format!(" traffic not accepted by {by}"))];
        parts.extend(self.address(frontend));
        let rule = Rule::new(parts, Target::Drop);
        self.put(Shared::ProxyFirewall, frontend.shadowed, rule);
    }

    /// Refuses or drops what no endpoint takes; nothing when one does.
    fn refuse(&mut self, shared: Shared, frontend: &Frontend) {
        let (target, reason) = match frontend.action {
            Action::Balance(_) => return,
            Action::Reject => (Target::Reject, " has no endpoints"),
            Action::Drop => (Target::Drop, " has no local endpoints"),
        };
        let mut parts = vec![self.comment(reason)];
        if frontend.ip.is_none() {
            parts.push(Part::ToLocal);
        }
        parts.extend(self.address(frontend));
        self.put(shared, frontend.shadowed, Rule::new(parts, target));
    }

    fn node_port(&mut self, frontend: &Frontend) {
        let target = Target::Jump(self.names.chain(Role::External));
        let context = self.context;
        if context.family == Family::V4 && context.localhost && context.host.count_localhost {
            let parts = vec![
                self.comment(""),
                Part::Protocol(self.exposure.key.protocol),
                Part::Destination(Place::Net(loopback_v4())),
                Part::Port(frontend.port),
                Part::Count(names::LOCALHOST_COUNTER),
            ];
            let rule = Rule::new(parts, target);
            self.put(Shared::NodePorts, frontend.shadowed, rule);
        }
        let mut parts = vec![self.comment("")];
        parts.extend(self.address(frontend));
        let rule = Rule::new(parts, target);
        self.put(Shared::NodePorts, frontend.shadowed, rule);
    }

    fn health_check(&mut self) {
        let Some(port) = self.exposure.health_check_port else {
            return;
        };
        let parts = vec![
            self.comment(" health check node port"),
            Part::Protocol(Protocol::Tcp),
            Part::Port(port),
        ];
        self.put(
            Shared::HealthChecks,
            false,
            Rule::new(parts, Target::Accept),
        );
    }

    /// The chain for traffic from outside.
    fn external(&mut self) {
        let Some(frontend) = self.externals().next() else {
            return;
        };
        let action = frontend.action;
        let label = &self.names.label;
        let comment =
            |what: &str| Part::Comment(format!("{what} for {label} external destinations").into());
        let mark = Target::Jump(names::MARK_MASQ);
        let cluster = Target::Jump(self.names.chain(Role::Cluster));
        let mut rules = Vec::new();
        match self.exposure.external_policy {
            TrafficPolicy::Cluster => {
                rules.push(Rule::new([comment("masquerade traffic")], mark));
            }
            TrafficPolicy::Local => {
                if let Some(detector) = &self.context.detector {
                    let parts = [comment("pod traffic"), from_pod(detector)];
                    rules.push(Rule::new(parts, cluster));
                }
                let here = |what| [comment(what), Part::FromLocal];
                rules.push(Rule::new(here("masquerade LOCAL traffic"), mark));
                rules.push(Rule::new(here("route LOCAL traffic"), cluster));
            }
        }
        if let Action::Balance(pool) = action {
            let to = self.names.chain(chooser(pool));
            rules.push(Rule::new([], Target::Jump(to)));
        }
        self.chain(Role::External, rules);
    }

    /// Lets allowed sources pass; who falls out of the chain is dropped later.
    fn firewall(&mut self) {
        if !self.guarded() {
            return;
        }
        let allow = |place| {
            let parts = [self.comment(" loadbalancer IP"), Part::Source(place)];
            Rule::new(parts, Target::Jump(self.names.chain(Role::External)))
        };
        let ranges = self.exposure.source_ranges.iter();
        let mut rules: Vec<Rule> = ranges.map(|net| allow(Place::Net(*net))).collect();
        if self.exposure.source_ranges_include_node {
            let own = self.of_kind(FrontendKind::LoadBalancerIp);
            rules.extend(own.map(|ip| allow(Place::Host(ip))));
        }
        let label = &self.names.label;
        let rest = format!("other traffic to {label} will be dropped by KUBE-PROXY-FIREWALL");
        rules.push(Rule::new([Part::Comment(rest.into())], Target::None));
        self.chain(Role::Firewall, rules);
    }

    /// The chain that chooses from a pool, if anything is in it.
    fn balance(&mut self, pool: Pool) {
        let endpoints: Vec<&Endpoint> = self.exposure.pool(pool).collect();
        if endpoints.is_empty() {
            return;
        }
        let mut rules = Vec::with_capacity(1 + 2 * endpoints.len());
        rules.extend(self.masquerade(pool));
        let jump = |endpoint: &Endpoint, condition: Option<Part>| {
            let socket = format_socket(endpoint.ip, endpoint.port);
            let comment = self.small_comment(&format!(" -> {socket}"));
            let to = self.names.endpoint(endpoint.ip, endpoint.port);
            Rule::new(
                comment.into_iter().chain(condition).collect::<Vec<_>>(),
                Target::Jump(to),
            )
        };
        if let Some(seconds) = self.exposure.affinity_seconds {
            rules.extend(endpoints.iter().map(|endpoint| {
                let list = self.names.endpoint(endpoint.ip, endpoint.port);
                jump(
                    endpoint,
                    Some(Part::Remembered(list.as_str().into(), seconds.get())),
                )
            }));
        }
        let mut left = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        for endpoint in endpoints {
            let condition = (left > 1).then_some(Part::OneIn(left));
            rules.push(jump(endpoint, condition));
            left -= 1;
        }
        self.chain(chooser(pool), rules);
    }

    /// Marks clients of the cluster IP whose replies must come back through here.
    fn masquerade(&self, pool: Pool) -> Option<Rule> {
        let frontends = &self.exposure.frontends;
        let cluster = frontends.iter().find(|frontend| {
            frontend.kind == FrontendKind::ClusterIp && frontend.action == Action::Balance(pool)
        })?;
        let mut parts = vec![self.comment(" cluster IP")];
        parts.extend(self.address(cluster));
        match (cluster.masquerade, &self.context.detector) {
            (Masquerade::Always, _) => {}
            (Masquerade::Outside, Some(detector)) => parts.push(not_from_pod(detector)),
            _ => return None,
        }
        Some(Rule::new(parts, Target::Jump(names::MARK_MASQ)))
    }

    /// The chains of endpoints.
    fn endpoints(&mut self) {
        for endpoint in &self.exposure.endpoints {
            let chain = self.names.endpoint(endpoint.ip, endpoint.port);
            let mut itself: Vec<Part> = self.small_comment("").into_iter().collect();
            let mut any_client = itself.clone();
            itself.push(Part::Source(Place::Host(endpoint.ip)));
            if self.exposure.affinity_seconds.is_some() {
                any_client.push(Part::Remember(chain.as_str().into()));
            }
            any_client.push(Part::Protocol(self.exposure.key.protocol));
            let rules = vec![
                Rule::new(itself, Target::Jump(names::MARK_MASQ)),
                Rule::new(any_client, Target::Dnat(endpoint.ip, endpoint.port)),
            ];
            self.rules.chains.insert(chain, rules);
        }
    }
}

fn from_pod(detector: &Detector) -> Part {
    match detector {
        Detector::Source(net) => Part::Source(Place::Net(*net)),
        Detector::Interface(name) => Part::Input(name.clone()),
        Detector::InterfacePrefix(prefix) => Part::Input(format!("{prefix}+").into()),
    }
}

fn not_from_pod(detector: &Detector) -> Part {
    match detector {
        Detector::Source(net) => Part::SourceNot(*net),
        Detector::Interface(name) => Part::InputNot(name.clone()),
        Detector::InterfacePrefix(prefix) => Part::InputNot(format!("{prefix}+").into()),
    }
}
