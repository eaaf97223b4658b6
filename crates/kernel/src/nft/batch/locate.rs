//! Which step of a batch the kernel refused, and what it was to do.

use super::super::uapi::{elem, expr, msg, rule};
use super::{Batch, NFGEN, Start};
use crate::wire::{HEADER, align, attributes, messages};

impl Batch {
    /// The same with the expression of a rule that `offset` points into.
    pub(in crate::nft) fn describe_fault(&self, step: usize, offset: Option<u32>) -> String {
        let what = self.describe(step);
        let start = self.steps.get(step).zip(offset);
        let name = start.and_then(|(start, offset)| self.find_expression(*start, offset as usize));
        match name {
            Some(name) => format!("{what} with {name}"),
            None => what,
        }
    }

    /// What a step does, in a few words.
    pub fn describe(&self, step: usize) -> String {
        let bytes = self.steps.get(step).map(|start| start.offset);
        let message =
            bytes.and_then(|offset| messages(self.writer.bytes().get(offset..)?).next()?.ok());
        message.map_or_else(
            || "nothing".to_owned(),
            |message| crate::nft::object::describe(&message),
        )
    }

    /// The step that a message of this number belongs to, and if the message is a list of elements
    /// and `offset` points into one of them, which element of the step that is.
    pub(in crate::nft) fn locate(
        &self,
        message: u32,
        offset: Option<u32>,
    ) -> (usize, Option<usize>) {
        let step = self.steps.partition_point(|start| start.message <= message);
        let step = step.saturating_sub(1);
        let element = self
            .steps
            .get(step)
            .zip(offset)
            .and_then(|(start, offset)| self.find_element(*start, message, offset as usize));
        (step, element)
    }

    fn find_element(&self, start: Start, message: u32, fault: usize) -> Option<usize> {
        let mut counted = 0;
        let mut at = start.offset;
        for _ in start.message..message {
            let earlier = messages(self.writer.bytes().get(at..)?).next()?.ok()?;
            counted += list(earlier.body, elem::LIST_ELEMENTS)?.1.len();
            at += align(HEADER + earlier.body.len());
        }
        let faulty = messages(self.writer.bytes().get(at..)?).next()?.ok()?;
        let (list_at, lengths) = list(faulty.body, elem::LIST_ELEMENTS)?;
        let mut end = HEADER + list_at;
        for (index, len) in lengths.iter().enumerate() {
            end += len;
            if fault < end {
                return (fault >= end - len).then_some(counted + index);
            }
        }
        None
    }

    fn find_expression(&self, start: Start, fault: usize) -> Option<String> {
        let message = messages(self.writer.bytes().get(start.offset..)?)
            .next()?
            .ok()?;
        if message.kind != msg::NEWRULE {
            return None;
        }
        let (list_at, lengths) = list(message.body, rule::EXPRESSIONS)?;
        let mut at = list_at;
        for len in lengths {
            let expression = message.body.get(at..at + len)?;
            at += len;
            if fault < HEADER + at {
                let attr = attributes(expression).next()?.ok()?;
                let mut parts = attr.nested().map_while(Result::ok);
                let name = parts.find(|part| part.kind == expr::NAME)?;
                return Some(name.text().into_owned());
            }
        }
        None
    }
}

/// Of a message with a list of this kind: where in its body the members begin, and how long each
/// one is.
pub(super) fn list(body: &[u8], kind: u16) -> Option<(usize, Vec<usize>)> {
    let mut at = NFGEN;
    for attr in attributes(body.get(NFGEN..)?) {
        let attr = attr.ok()?;
        if attr.kind == kind {
            let lengths = attr
                .nested()
                .map(|element| Some(align(element.ok()?.payload.len() + 4)));
            return Some((at + 4, lengths.collect::<Option<_>>()?));
        }
        at += align(attr.payload.len() + 4);
    }
    None
}
