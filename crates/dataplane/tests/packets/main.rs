//! One table of packets for all modes: objects go in, packets are sent, and the outcome is the same
//! whichever dataplane programs the node.
//!
//! [`modes`] lists the dataplanes. A case runs for each of them in both families, every time on a
//! node of its own; one that holds in some modes only says why. The number in a case's name is that
//! of a row in docs/parity.md.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod affinity;
mod machine;
mod masquerading;
mod matrix;
mod modes;
mod node_ports;
mod passing;
mod refusing;
mod scene;
mod sources;
mod spy;
mod table;
mod transparent;
mod userspace;
mod world;
