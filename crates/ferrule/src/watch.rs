//! The cluster as it is described to us: objects in, [`Event`](ferrule_core::track::Event)s out.
//!
//! [`api`] holds what an object looks like on the wire, [`convert`] turns it into the core's own
//! types and notes what it cannot use, [`manifests`] reads objects from files and [`kubernetes`]
//! watches an API server. Nobody further in sees an API type.

pub mod api;
pub mod convert;
pub mod kubernetes;
pub mod manifests;

pub use convert::Unserved;
