//! What was wrong in the input, reported beside the answer.
//!
//! An issue never stops anything: the part it names is left out, everything else works. It names
//! the object and the field, so the reader knows what to change.

use std::fmt;
use std::sync::Arc;

use crate::model::{ServiceKey, SliceKey};

/// The kinds of object we watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Service
    Service,
    /// EndpointSlice
    EndpointSlice,
    /// Node
    Node,
    /// ServiceCIDR
    ServiceCidr,
}

impl Kind {
    /// All of them, in the order they are best delivered.
    pub const ALL: [Self; 4] = [
        Self::Node,
        Self::ServiceCidr,
        Self::Service,
        Self::EndpointSlice,
    ];

    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// A Service.
    Service(ServiceKey),
    /// An EndpointSlice.
    Slice(SliceKey),
    /// The Node of this name.
    Node(Arc<str>),
    /// The ServiceCIDR of this name.
    ServiceCidr(Arc<str>),
}

impl ObjectKey {
    /// Its kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// `namespace/name`, or the name of a cluster-wide object.
    pub fn name(&self) -> &str {
        match self {
            Self::Service(key) => key.as_str(),
            Self::Slice(key) => key.as_str(),
            Self::Node(name) | Self::ServiceCidr(name) => name,
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be the name itself that is wrong, and text must not steer a terminal.
        write!(f, "{} {}", self.kind().as_str(), self.name().escape_debug())
    }
}

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is left out, or it can be normal for a moment, e.g. a slice that outlives its
    /// Service.
    Note,
    /// Someone should change the object.
    Warning,
}

/// One thing wrong with one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Issue {
    /// The object.
    pub object: ObjectKey,
    /// Path of the field, e.g. `spec.ports[1].nodePort`.
    pub field: String,
    /// What is wrong, and what we did about it.
    pub message: String,
    /// How much it matters.
    pub severity: Severity,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.message)
    }
}
