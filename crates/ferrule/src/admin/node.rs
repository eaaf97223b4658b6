//! What the whole node does, in a few fields: for the page, and for support.
//!
//! Field names are an interface. Lists are bounded; the counts beside them are not.

use ferrule_core::issue::{Issue, Severity};
use ferrule_core::model::PortKey;
use serde::Serialize;

use super::history::{Audit, Sync};

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnswer {
    /// [`crate::explain::answer::VERSION`]
    pub version: String,
    /// The name of the node.
    pub node: String,
    /// The mode.
    pub mode: String,
    /// The release of this program.
    pub ferrule: String,
    /// The first lists were complete.
    pub begun: bool,
    /// Another number whenever an answer about Services may be different.
    pub generation: u64,
    /// How many Services there are.
    pub services: usize,
    /// The families that are programmed.
    pub families: Vec<FamilyAnswer>,
    /// How many issues there are.
    pub issue_count: usize,
    /// The first of them.
    pub issues: Vec<IssueAnswer>,
    /// Syncs since the start.
    pub sync_count: u64,
    /// The last ones, newest first.
    pub syncs: Vec<Sync>,
}

/// One family.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyAnswer {
    /// `IPv4`, `IPv6`
    pub family: String,
    /// The node's address.
    pub node_ip: String,
    /// The node's zone.
    pub zone: Option<String>,
    /// It was programmed once.
    pub programmed: bool,
    /// Why the last sync failed.
    pub error: Option<String>,
    /// Services with changes that are not programmed yet.
    pub pending: usize,
    /// How long the oldest of them waits.
    pub pending_seconds: Option<u64>,
    /// Service ports that the kernel refuses.
    pub refused_count: usize,
    /// The first of them.
    pub refused: Vec<RefusedPort>,
    /// The last comparison of everything with the kernel.
    pub audit: Option<Audit>,
}

/// A Service port that the kernel refuses.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPort {
    /// Which one.
    pub port: String,
    /// What was said about it.
    pub message: String,
}

impl RefusedPort {
    /// So many are listed.
    pub const MOST: usize = 100;

    /// One of them.
    pub fn of((key, message): (&PortKey, &String)) -> Self {
        Self {
            port: key.to_string(),
            message: message.clone(),
        }
    }
}

/// Something wrong with an object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IssueAnswer {
    /// `Service`, `EndpointSlice`, `Node`, `ServiceCIDR`
    pub kind: &'static str,
    /// Its name, with the namespace if it has one.
    pub object: String,
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// Someone should change the object.
    pub warning: bool,
}

impl IssueAnswer {
    /// So many are listed.
    pub const MOST: usize = 500;

    /// An issue in fields.
    pub fn of(issue: &Issue) -> Self {
        Self {
            kind: issue.object.kind().as_str(),
            object: issue.object.name().to_owned(),
            field: issue.field.clone(),
            message: issue.message.clone(),
            warning: issue.severity == Severity::Warning,
        }
    }
}
