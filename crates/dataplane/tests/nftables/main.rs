//! nftables in real kernels, each test in a network of its own.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod packets;
mod passing;
mod random;
mod state;
mod support;
mod text;
