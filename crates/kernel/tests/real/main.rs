//! The crate against the real kernel, each test in a network namespace of its own.
//!
//! Needs the right to make network namespaces and the programs `nft` and `ip`. Where namespaces are
//! not allowed the tests say so; where `CI` is set they fail then.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is all tests; the exceptions of clippy.toml do not reach their helpers"
)]

mod addresses;
mod by_key;
mod captures;
mod compat;
mod counters;
mod flows;
mod links;
mod listing;
mod packets;
mod refusals;
mod round_trip;
mod sample;
mod sets;
mod support;
mod tap;
mod watching;
mod ways;
