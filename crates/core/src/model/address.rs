//! Address families, and addresses the way Go reads them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Index, IndexMut};

use ipnet::IpNet;

/// An address family. Everything downstream of `desired` is decided per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Both families, in the order kube-proxy handles them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The family of a network.
    pub const fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }

    /// The word Kubernetes uses in `addressType`, labels and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One value for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerFamily<T> {
    /// The IPv4 value.
    pub v4: T,
    /// The IPv6 value.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Computes the value of each family.
    pub fn from_fn(mut f: impl FnMut(Family) -> T) -> Self {
        Self {
            v4: f(Family::V4),
            v6: f(Family::V6),
        }
    }
}

impl<T> Index<Family> for PerFamily<T> {
    type Output = T;

    fn index(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

impl<T> IndexMut<Family> for PerFamily<T> {
    fn index_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Reads an address as Kubernetes stores them: leading zeros of IPv4 octets are decimal, and an
/// IPv4-mapped IPv6 address is the IPv4 address.
///
/// Old objects hold `010.0.0.1`; Go once accepted that, so the API server still hands it out.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    // Zones (`fe80::1%eth0`) have no meaning in a Service; std refuses them in `IpAddr` too.
    let ip = match text.parse::<IpAddr>() {
        Ok(ip) => ip,
        Err(_) => match text.rfind(':') {
            None => IpAddr::V4(parse_dotted(text)?),
            Some(colon) => {
                let (head, tail) = text.split_at(colon + 1);
                format!("{head}{}", parse_dotted(tail)?).parse().ok()?
            }
        },
    };
    Some(ip.to_canonical())
}

/// Four decimal octets, leading zeros allowed.
fn parse_dotted(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        // `u8::from_str` would accept a sign.
        if !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// Reads `address/length` with the tolerance of [`parse_ip`]; host bits are cleared.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let ip = parse_ip(address)?;
    // `::ffff:10.0.0.0/104` is `10.0.0.0/8`; shorter than the mapping prefix it names no IPv4 net.
    let mapped = ip.is_ipv4() && address.contains(':');
    let length = if mapped {
        length.checked_sub(96)?
    } else {
        length
    };
    Some(IpNet::new(ip, length).ok()?.trunc())
}

/// An endpoint the way Kubernetes prints it: `ip:port`, with brackets around IPv6.
pub fn format_socket(ip: IpAddr, port: super::Port) -> String {
    std::net::SocketAddr::new(ip, port.get()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_091_leading_zeros_are_decimal_and_ipv6_is_canonical() {
        assert_eq!(parse_ip("010.0.0.1").unwrap().to_string(), "10.0.0.1");
        assert_eq!(
            parse_ip("192.168.008.09").unwrap().to_string(),
            "192.168.8.9"
        );
        assert_eq!(parse_ip("FD00:0:0:0::0A").unwrap().to_string(), "fd00::a");
        assert_eq!(parse_ip("::ffff:10.0.0.1").unwrap().to_string(), "10.0.0.1");
        assert_eq!(
            parse_ip("::ffff:010.0.0.01").unwrap().to_string(),
            "10.0.0.1"
        );
        assert_eq!(
            parse_ip("64:ff9b::010.0.0.1").unwrap().to_string(),
            "64:ff9b::a00:1"
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            " ",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "+1.0.0.0",
            "10.0.0.-1",
            "1..2.3",
            "fd00::1%eth0",
            "fd00::g",
            "10.0.0.1 ",
            "[::1]",
            "10.0.0.1:80",
            "::010.0.0",
        ] {
            assert_eq!(parse_ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn networks_are_masked_and_canonical() {
        assert_eq!(parse_cidr("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(
            parse_cidr("010.0.0.0/08").unwrap().to_string(),
            "10.0.0.0/8"
        );
        assert_eq!(parse_cidr("FD00::1/64").unwrap().to_string(), "fd00::/64");
        assert_eq!(
            parse_cidr("::ffff:10.0.0.0/104").unwrap().to_string(),
            "10.0.0.0/8"
        );
        for text in [
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "/8",
            "fd00::/129",
        ] {
            assert_eq!(parse_cidr(text), None, "{text:?}");
        }
    }
}
