//! Who is told how this node is doing: the proxy itself, and every Service that asked for it.
//!
//! In: what sync reports about its progress, and what it decided about health checks. Out:
//! answers for kubelets and load balancers. Nothing here can stop sync.

pub mod proxy;
pub mod services;
