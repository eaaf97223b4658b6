//! Identities: who a Service, a slice and a Service port are.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

/// A transport protocol a Service port can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

impl Protocol {
    /// Reads the word of the API (`TCP`, `UDP`, `SCTP`; exact case).
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// The lower-case word of rule languages and hashes.
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A port number, 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// The port with this number; `None` outside 1 to 65535.
    pub fn new(number: i64) -> Option<Self> {
        u16::try_from(number)
            .ok()
            .and_then(NonZeroU16::new)
            .map(Self)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `namespace/name` in one shared string.
///
/// The order is that of the string, so sorted output reads like sorted text.
macro_rules! namespaced_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The key of `namespace/name`.
            pub fn new(namespace: &str, name: &str) -> Self {
                Self(format!("{namespace}/{name}").into())
            }

            /// `namespace/name`
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The part before the slash.
            pub fn namespace(&self) -> &str {
                self.0.split_once('/').map_or("", |(namespace, _)| namespace)
            }

            /// The part after the slash.
            pub fn name(&self) -> &str {
                self.0.split_once('/').map_or("", |(_, name)| name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

namespaced_key! {
    /// Which Service.
    ServiceKey
}
namespaced_key! {
    /// Which EndpointSlice.
    SliceKey
}

/// Which port of which Service: two ports may share a name when their protocols differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    /// The Service.
    pub service: ServiceKey,
    /// The port's name; empty when the Service has one unnamed port.
    pub name: Arc<str>,
    /// The port's protocol.
    pub protocol: Protocol,
}

/// `namespace/name:port`, or `namespace/name` for an unnamed port. As in kube-proxy the protocol
/// is not part of the text; hashes and comments depend on it.
impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)?;
        if !self.name.is_empty() {
            write!(f, ":{}", self.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, protocol: Protocol) -> PortKey {
        PortKey {
            service: ServiceKey::new("ns", "n"),
            name: name.into(),
            protocol,
        }
    }

    #[test]
    fn core_081_port_names_print_with_and_without_name_and_protocols_are_distinct() {
        assert_eq!(key("p", Protocol::Tcp).to_string(), "ns/n:p");
        assert_eq!(key("", Protocol::Udp).to_string(), "ns/n");
        assert_ne!(key("dns", Protocol::Tcp), key("dns", Protocol::Udp));
        assert_eq!(
            key("dns", Protocol::Tcp).to_string(),
            key("dns", Protocol::Udp).to_string()
        );
    }

    #[test]
    fn ports_are_one_to_65535() {
        assert_eq!(Port::new(80).map(Port::get), Some(80));
        assert_eq!(Port::new(65535).map(Port::get), Some(65535));
        for bad in [0, -1, 65536, 70000, i64::MIN, i64::MAX] {
            assert_eq!(Port::new(bad), None);
        }
    }

    #[test]
    fn keys_split_where_they_were_joined() {
        let key = ServiceKey::new("kube-system", "dns");
        assert_eq!((key.namespace(), key.name()), ("kube-system", "dns"));
        assert_eq!(key.to_string(), "kube-system/dns");
    }
}
