//! With which endpoint the kernel remembers a client, where a Service asks for session affinity.

use std::net::IpAddr;
use std::time::Duration;

use ferrule_core::model::Port;

/// A client and its endpoint, as the rules of a mode remember them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The endpoint.
    pub endpoint: (IpAddr, Port),
    /// How much longer, without another connection; `None` where the kernel does not say.
    pub left: Option<Duration>,
}
