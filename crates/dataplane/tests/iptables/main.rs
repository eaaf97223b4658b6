//! iptables in real kernels, each test in a network of its own, in both flavours.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod direct;
mod encoding;
mod faults;
mod ipvs;
mod programs;
mod random;
mod recorded;
mod rules;
mod state;
mod support;
mod verify;
