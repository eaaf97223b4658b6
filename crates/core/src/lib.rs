//! Kubernetes meaning becomes desired state: what every Service address does on this node.
//!
//! In: [`track::Event`]s about Services, EndpointSlices, the Node and ServiceCIDRs, as
//! [`model`] types. Out: [`desired::Desired`], every address with exactly one action, and beside
//! it the [`desired::Delta`] since the last update.
//!
//! No I/O, no clock, no async, no failure. Input that makes no sense is left out and reported as
//! an [`issue::Issue`], so one bad object cannot stall the others. The cost of a step is
//! proportional to the Services that changed, never to the Services that exist.

pub mod desired;
pub mod facts;
pub mod issue;
pub mod model;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod track;
