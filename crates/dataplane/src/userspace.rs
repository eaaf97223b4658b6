//! Mode userspace: rules lead clients to this process, and it copies their bytes to endpoints.

pub mod relay;
