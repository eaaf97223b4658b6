//! nftables in real kernels, each test in a network of its own.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod faults;
mod flaky;
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
mod support;
mod twin;
