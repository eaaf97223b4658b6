//! Mode ipvs on a real kernel. Few kernels have IPVS; `cargo xtask uml` brings one.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the clock comes from whoever calls, and here that is the test"
)]

mod moving;
mod state;
mod support;
mod traffic;
mod verify;
