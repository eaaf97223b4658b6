//! Names that must equal kube-proxy's: chains, and what they are made of.

use std::fmt;

use ferrule_core::model::{Port, PortKey, format_socket};
use ferrule_kernel::xt::Table;
use sha2::{Digest, Sha256};

use crate::xtables::chain::{Chain, TableChain};

/// What a chain of a Service port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Chooses among the endpoints of the whole cluster.
    Cluster,
    /// Chooses among the endpoints on this node.
    Local,
    /// Takes traffic from outside.
    External,
    /// Lets allowed sources pass to a load balancer IP.
    Firewall,
    /// Translates to one endpoint.
    Endpoint,
}

/// The part of a name that tells Service ports apart: sixteen letters and digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Suffix([u8; 16]);

pub const SERVICES: Chain = Chain::new("KUBE-SERVICES");
pub const EXTERNAL_SERVICES: Chain = Chain::new("KUBE-EXTERNAL-SERVICES");
pub const NODE_PORTS: Chain = Chain::new("KUBE-NODEPORTS");
pub const FORWARD: Chain = Chain::new("KUBE-FORWARD");
pub const PROXY_FIREWALL: Chain = Chain::new("KUBE-PROXY-FIREWALL");
/// Kubelet's as well.
pub const FIREWALL: Chain = Chain::new("KUBE-FIREWALL");
pub const POSTROUTING: Chain = Chain::new("KUBE-POSTROUTING");
pub const MARK_MASQ: Chain = Chain::new("KUBE-MARK-MASQ");
pub const CANARY: Chain = Chain::new("KUBE-PROXY-CANARY");

/// Counts packets that belong to no connection and were dropped.
pub const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";
/// Counts connections to NodePorts on localhost.
pub const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";

/// A chain that all Service ports put rules into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shared {
    /// Refuses traffic to cluster IPs.
    RefusedServices,
    /// Refuses traffic to other addresses.
    RefusedExternals,
    /// Accepts health checks of load balancers.
    HealthChecks,
    /// Drops what no allowed source sent to a load balancer IP.
    ProxyFirewall,
    /// Jumps from addresses to chains of Service ports.
    Services,
    /// Jumps from NodePorts to chains of Service ports.
    NodePorts,
}

impl Shared {
    /// Where it is, and what it is called there.
    pub const fn at(self) -> TableChain {
        match self {
            Self::RefusedServices => (Table::Filter, SERVICES),
            Self::RefusedExternals => (Table::Filter, EXTERNAL_SERVICES),
            Self::HealthChecks => (Table::Filter, NODE_PORTS),
            Self::ProxyFirewall => (Table::Filter, PROXY_FIREWALL),
            Self::Services => (Table::Nat, SERVICES),
            Self::NodePorts => (Table::Nat, NODE_PORTS),
        }
    }
}

impl Role {
    /// All of them.
    #[cfg(test)]
    pub const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Local,
        Self::External,
        Self::Firewall,
        Self::Endpoint,
    ];

    /// How names of such chains begin.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

/// What the chains of one Service port are called.
#[derive(Clone, Debug)]
pub struct Names {
    /// `namespace/name:port`
    pub label: String,
    /// What is hashed: the label and the protocol.
    seed: String,
    suffix: Suffix,
}

impl Names {
    /// The names of this Service port's chains.
    pub fn new(key: &PortKey) -> Self {
        let label = key.to_string();
        let seed = format!("{label}{}", key.protocol.lower());
        let suffix = Suffix::of(&seed);
        Self {
            label,
            seed,
            suffix,
        }
    }

    /// The chain in this role.
    pub fn chain(&self, role: Role) -> Chain {
        Chain::generated(role.prefix(), self.suffix.as_str())
    }

    /// The chain that translates to this endpoint.
    pub fn endpoint(&self, ip: std::net::IpAddr, port: Port) -> Chain {
        let seed = format!("{}{}", self.seed, format_socket(ip, port));
        Chain::generated(Role::Endpoint.prefix(), Suffix::of(&seed).as_str())
    }
}

impl Suffix {
    /// The first sixteen digits in base 32 (RFC 4648) of the text's digest.
    fn of(text: &str) -> Self {
        const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let digest = Sha256::digest(text.as_bytes());
        let mut digits = [0; 16];
        // Five bytes are eight digits.
        for (digits, bytes) in digits.chunks_exact_mut(8).zip(digest.chunks_exact(5)) {
            let mut number = bytes
                .iter()
                .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            for digit in digits.iter_mut().rev() {
                let value = usize::try_from(number % 32).expect("it is below 32");
                *digit = ALPHABET[value];
                number /= 32;
            }
        }
        Self(digits)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base 32 is ASCII")
    }
}

impl fmt::Debug for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::LAYOUT;
    use super::*;
    use ferrule_core::model::{Protocol, ServiceKey};

    fn key(service: &str, name: &str, protocol: Protocol) -> PortKey {
        let (namespace, service) = service.split_once('/').unwrap();
        PortKey {
            service: ServiceKey::new(namespace, service),
            name: name.into(),
            protocol,
        }
    }

    fn suffix(service: &str, name: &str, protocol: Protocol) -> String {
        Names::new(&key(service, name, protocol))
            .suffix
            .as_str()
            .to_owned()
    }

    fn endpoint(names: &Names, ip: &str, port: i64) -> String {
        let chain = names.endpoint(ip.parse().unwrap(), Port::new(port).unwrap());
        chain.to_string()
    }

    #[test]
    fn ipt_001_the_name_of_an_unnamed_port_has_no_colon() {
        let label = |name| Names::new(&key("ns1/svc1", name, Protocol::Tcp)).label;
        assert_eq!(label(""), "ns1/svc1");
        assert_eq!(label("p80"), "ns1/svc1:p80");
    }

    #[test]
    fn ipt_002_service_chains_are_named_by_name_and_protocol() {
        for (service, name, protocol, wanted) in [
            ("ns1/svc1", "p80", Protocol::Tcp, "XPGD46QRK7WJZT7O"),
            ("ns5/svc5", "p80", Protocol::Tcp, "NUKIZ6OKUXPJNT4C"),
            ("ns2/svc2", "p8080", Protocol::Tcp, "2VJB64SDSIJUP5T6"),
            ("demo/usc", "s", Protocol::Sctp, "XG35J2IU56U6ZHLA"),
            ("default/six", "http", Protocol::Tcp, "ZLYXSTDIRJH6N6AX"),
            ("demo/c3", "", Protocol::Tcp, "ZKJBOCQQMHJ6QMHS"),
        ] {
            assert_eq!(suffix(service, name, protocol), wanted, "{service}");
        }
        let names = Names::new(&key("ns1/svc1", "p80", Protocol::Tcp));
        let chains = Role::ALL.map(|role| names.chain(role).to_string());
        for (chain, prefix) in chains.iter().zip(["SVC", "SVL", "EXT", "FW", "SEP"]) {
            assert_eq!(*chain, format!("KUBE-{prefix}-XPGD46QRK7WJZT7O"));
            assert!(LAYOUT.is_generated(Table::Nat, chain));
        }
        for other in [
            "KUBE-SERVICES",
            "KUBE-FIREWALL",
            "KUBE-POSTROUTING",
            "KUBE-KUBELET-CANARY",
        ] {
            assert!(!LAYOUT.is_generated(Table::Nat, other));
        }
    }

    #[test]
    fn ipt_003_endpoint_chains_are_named_by_the_endpoint_too() {
        let names = Names::new(&key("ns1/svc1", "p80", Protocol::Tcp));
        assert_eq!(
            endpoint(&names, "10.180.0.1", 80),
            "KUBE-SEP-SXIVWICOYRO3J4NJ"
        );
        let names = Names::new(&key("ns5/svc5", "p80", Protocol::Tcp));
        assert_eq!(
            endpoint(&names, "10.180.0.3", 80),
            "KUBE-SEP-I77PXRDZVX7PMWMN"
        );
        let names = Names::new(&key("default/six", "http", Protocol::Tcp));
        assert_eq!(
            endpoint(&names, "fd80:abcd:12::a1", 8080),
            "KUBE-SEP-AWDSMPKUFURPE42L"
        );
        let names = Names::new(&key("demo/usc", "s", Protocol::Sctp));
        assert_eq!(
            endpoint(&names, "10.128.2.16", 5001),
            "KUBE-SEP-ISYRL2ZDFITJAXAK"
        );
    }

    #[test]
    fn ipt_004_protocols_are_hashed_in_lower_case() {
        let of = |protocol| suffix("ns/n", "dns", protocol);
        assert_eq!(of(Protocol::Udp), Suffix::of("ns/n:dnsudp").as_str());
        assert_ne!(of(Protocol::Udp), of(Protocol::Tcp));
    }
}
