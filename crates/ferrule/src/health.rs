//! Health servers: of the proxy itself, and of every Service with a `healthCheckNodePort`.
//!
//! In: what sync reports about its progress, and what it decided about health checks. Out:
//! answers for kubelets and load balancers. Nothing here can stop sync.

pub mod proxy;
pub mod services;
