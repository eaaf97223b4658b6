//! `ferrule proxy` in mode ipvs as a node runs it, on a kernel that has IPVS: `cargo xtask uml`
//! brings one.

#![expect(clippy::disallowed_methods, reason = "these tests run the program")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod failing;
mod leaving;
mod restarting;
mod starting;
#[path = "../proxy/support.rs"]
#[expect(dead_code, unused_imports, reason = "other modes need more of it")]
mod support;
