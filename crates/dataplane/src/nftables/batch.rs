//! Steps as a transaction, and why the kernel refused it.

use std::io;

use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::nft::{Batch, BatchError, Table};

use super::diff::Step;
use crate::{ApplyError, said};

/// What the kernel said, and to which steps.
pub type Failed = (BatchError, Vec<Step>);

/// A transaction of these steps.
pub fn batch(steps: &[Step], family: ferrule_kernel::Family, table: &Table) -> Batch {
    let mut batch = Batch::new(family, table.name.clone());
    for step in steps {
        put(&mut batch, step, family, table);
    }
    batch
}

/// Appends a step.
pub fn put(batch: &mut Batch, step: &Step, family: ferrule_kernel::Family, table: &Table) {
    match step {
        Step::AddTable => batch.add_table(table),
        Step::CreateTable => batch.create_table(table),
        Step::DeleteTable => batch.delete_table(),
        Step::AddSet(container) => batch.add_set(&container.set(family)),
        Step::AddOwnSet(set) => batch.add_set(set),
        Step::DeleteOwnSet(name) => batch.delete_set(name),
        Step::AddOwn(name, elements) => batch.add_elements(name, elements),
        Step::DeleteOwn(name, elements) => batch.delete_elements(name, elements),
        Step::FlushOwn(name) => batch.flush_set(name),
        Step::AddChain(chain) => batch.add_chain(chain),
        Step::FlushChain(name) => batch.flush_chain(name),
        Step::AddRule(rule) => batch.add_rule(rule),
        Step::DeleteChain(name) => batch.delete_chain(name),
        Step::Flush(container) => batch.flush_set(container.name()),
        Step::Add(container, elements) => batch.add_elements(container.name(), elements),
        Step::Delete(container, elements) => batch.delete_elements(container.name(), elements),
    };
}

/// Whether it was the deletion of a chain that was refused, because something still leads there.
pub fn is_busy_chain(error: &BatchError, steps: &[Step]) -> bool {
    matches!(error, BatchError::Refused { step, source, .. }
        if source.kind() == io::ErrorKind::ResourceBusy
            && matches!(steps.get(*step), Some(Step::DeleteChain(_))))
}

/// Whether another process created the table first.
pub fn is_created_already(error: &BatchError, steps: &[Step]) -> bool {
    matches!(error, BatchError::Refused { step, source, .. }
        if source.kind() == io::ErrorKind::AlreadyExists
            && matches!(steps.get(*step), Some(Step::CreateTable)))
}

/// Why that failed.
pub fn refused(error: BatchError, steps: &[Step]) -> ApplyError {
    let text = error.to_string();
    match error {
        BatchError::Refused {
            step,
            element,
            what,
            message,
            source,
            ..
        } => {
            let which = element.and_then(|at| element_of(steps.get(step)?, at));
            let which = which.map_or_else(String::new, |which| format!(" ({which})"));
            let words = message.map_or_else(String::new, |words| format!(": {words}"));
            ApplyError::Refused {
                step: format!("{what}{which}{words}"),
                source,
            }
        }
        BatchError::Denied(source) | BatchError::Unsent { source, .. } => ApplyError::Refused {
            step: "the whole transaction".to_owned(),
            source,
        },
        BatchError::TooLong { what, .. } => ApplyError::Refused {
            step: what,
            source: io::Error::other(text),
        },
        BatchError::Conflict => ApplyError::OutOfSync(io::Error::other(text)),
        BatchError::Lost(source) => ApplyError::OutOfSync(source),
    }
}

/// What there is to say about one element of a step: whose it is, or its bytes.
fn element_of(step: &Step, at: usize) -> Option<String> {
    let (Step::Add(_, elements)
    | Step::Delete(_, elements)
    | Step::AddOwn(_, elements)
    | Step::DeleteOwn(_, elements)) = step
    else {
        return None;
    };
    let element = elements.get(at)?;
    Some(match &element.comment {
        Some(comment) => comment.as_str().to_owned(),
        None => format!("{:?}", element.key),
    })
}

/// Why reading failed.
pub fn unread(error: RequestError) -> ApplyError {
    ApplyError::OutOfSync(said(error))
}
