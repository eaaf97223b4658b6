//! What is asked: a Service, an address or a NodePort, and from which client.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ferrule_core::model::{Port, Protocol, ServiceKey, parse_ip};

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `namespace/name[:port]`; the port by its name or number.
    Service {
        /// Which Service.
        key: ServiceKey,
        /// Which of its ports; all without.
        port: Option<String>,
    },
    /// `ip:port[/protocol]`
    Address {
        /// The IP.
        ip: IpAddr,
        /// The port.
        port: Port,
        /// The protocol; all without.
        protocol: Option<Protocol>,
    },
    /// `nodeport:port[/protocol]`
    NodePort {
        /// The port.
        port: Port,
        /// The protocol; all without.
        protocol: Option<Protocol>,
    },
}

/// Words that are no target.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a Service (namespace/name, namespace/name:port), an address (10.96.0.10:80, \
     [fd00::a]:53/UDP) or a NodePort (nodeport:30080)"
)]
pub struct NoTarget;

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        if let Some(rest) = text.strip_prefix("nodeport:") {
            let (port, protocol) = split_protocol(rest)?;
            let port = number(port).ok_or(NoTarget)?;
            return Ok(Self::NodePort { port, protocol });
        }
        let address = split_protocol(text).ok();
        let address = address.and_then(|(address, protocol)| Some((socket(address)?, protocol)));
        if let Some(((ip, port), protocol)) = address {
            return Ok(Self::Address { ip, port, protocol });
        }
        let (namespace, rest) = text.split_once('/').ok_or(NoTarget)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let is_name = |text: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !text.is_empty() && text.chars().all(is_part)
        };
        let is_good = is_name(namespace) && is_name(name) && port.is_none_or(is_name);
        is_good.then_some(()).ok_or(NoTarget)?;
        Ok(Self::Service {
            key: ServiceKey::new(namespace, name),
            port: port.map(ToOwned::to_owned),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self {
            Self::Service { key, port } => {
                key.fmt(f)?;
                return match port {
                    Some(port) => write!(f, ":{port}"),
                    None => Ok(()),
                };
            }
            Self::Address { ip, port, protocol } => {
                SocketAddr::new(*ip, port.get()).fmt(f)?;
                protocol
            }
            Self::NodePort { port, protocol } => {
                write!(f, "nodeport:{port}")?;
                protocol
            }
        };
        match protocol {
            Some(protocol) => write!(f, "/{protocol}"),
            None => Ok(()),
        }
    }
}

/// Reads the address of a client.
pub fn client(text: &str) -> Result<IpAddr, String> {
    parse_ip(text).ok_or_else(|| "not an IP address such as 203.0.113.5".to_owned())
}

/// Splits off `/protocol`, in either case.
fn split_protocol(text: &str) -> Result<(&str, Option<Protocol>), NoTarget> {
    match text.split_once('/') {
        None => Ok((text, None)),
        Some((rest, word)) => {
            let protocol = Protocol::parse(&word.to_ascii_uppercase()).ok_or(NoTarget)?;
            Ok((rest, Some(protocol)))
        }
    }
}

/// An `ip:port`, with brackets around IPv6.
fn socket(text: &str) -> Option<(IpAddr, Port)> {
    let (ip, port) = text.rsplit_once(':')?;
    let ip = match ip.strip_prefix('[') {
        Some(rest) => parse_ip(rest.strip_suffix(']')?)?,
        None => parse_ip(ip).filter(IpAddr::is_ipv4)?,
    };
    Some((ip, number(port)?))
}

fn number(text: &str) -> Option<Port> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    Port::new(text.parse().ok().filter(|_| is_number)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_and_print_alike() {
        for text in [
            "shop/web",
            "shop/web:http",
            "shop/web:80",
            "10.96.0.10:80",
            "10.96.0.10:53/UDP",
            "[fd00::a]:80",
            "[fd00::a]:80/SCTP",
            "nodeport:30080",
            "nodeport:30080/TCP",
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        let lower: Target = "10.96.0.10:53/udp".parse().unwrap();
        assert_eq!(lower.to_string(), "10.96.0.10:53/UDP");
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in [
            "",
            "web",
            "shop/",
            "/web",
            "shop/web:",
            "shop/web/x",
            "shop/we b",
            "10.96.0.10",
            "10.96.0.10:0",
            "10.96.0.10:+1",
            "10.96.0.10:70000",
            "10.96.0.10:80/ICMP",
            "fd00::a:80",
            "nodeport:",
            "nodeport:http",
            "nodeport:30080/x",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
    }
}
