//! nftables in real kernels, each test in a network of its own.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

mod draws;
mod elements;
mod external;
mod faults;
mod flaky;
mod isolation;
mod layout;
mod random;
mod sources;
mod state;
mod steps;
mod support;
mod survival;
mod takeover;
mod text;
mod twin;
mod verify;
