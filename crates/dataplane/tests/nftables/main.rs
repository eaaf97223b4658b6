//! nftables in real kernels, each test in a network of its own.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod affinity;
mod faults;
mod flaky;
mod layout;
mod masquerading;
mod matrix;
mod node_ports;
mod packets;
mod passing;
mod random;
mod refusing;
mod sources;
mod spy;
mod state;
mod steps;
mod support;
mod survival;
mod takeover;
mod text;
mod twin;
