//! The relay between real sockets on loopback: clients on one side, endpoints on the other.
//!
//! Rules that redirect are only there where a test is about them; otherwise clients connect to the
//! proxy port itself, which the relay is told to allow.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests, and a panic is how they fail"
)]

mod addresses;
mod descriptors;
mod draining;
mod ladder;
mod memory;
mod ports;
mod rollout;
mod streams;
mod support;
mod udp;
mod udp_floods;
