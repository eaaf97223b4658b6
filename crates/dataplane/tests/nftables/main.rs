//! nftables in real kernels, each test in a network of its own.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod matrix;
mod packets;
mod passing;
mod random;
mod state;
mod support;
