//! The steps from some ranges of an interval set to others.
//!
//! In: the elements before and after. Out: [`Step`]s for the ranges that differ, so that one range
//! more costs one range, however many there are.
//!
//! The kernel looks at the neighbours of an element that comes, and refuses a beginning within a
//! range and an end without one. So ranges come whole, in order, and after those that go.

use ferrule_kernel::nft::{Element, Name, Value, ranges};

use super::Step;

/// Steps between two lists of elements, both as [`ranges::elements`] makes them.
pub fn change(set: &Name, old: &[Element], new: &[Element]) -> Vec<Step> {
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (spans(old).peekable(), spans(new).peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(before), Some(after)) if before == after => {
                old.next();
                new.next();
            }
            (Some(before), Some(after)) if place(before) > place(after) => {
                come.extend_from_slice(after);
                new.next();
            }
            (Some(before), _) => {
                gone.extend_from_slice(before);
                old.next();
            }
            (None, Some(after)) => {
                come.extend_from_slice(after);
                new.next();
            }
            (None, None) => break,
        }
    }
    let mut steps = Vec::new();
    if !gone.is_empty() {
        steps.push(Step::DeleteOwn(Name::clone(set), gone));
    }
    if !come.is_empty() {
        steps.push(Step::AddOwn(Name::clone(set), come));
    }
    steps
}

/// The same where the elements before are what the kernel has, in any order and by whomever made.
pub fn repair(set: &Name, present: &[Element], wanted: &[Element]) -> Vec<Step> {
    let mut present = present.to_vec();
    present.sort_unstable_by_key(|element| (element.key, element.ends_range));
    if present == wanted {
        return Vec::new();
    }
    if present == ranges::elements(ranges::ranges(&present)) {
        return change(set, &present, wanted);
    }
    // Half a range, or one with a comment: none of ours.
    let mut steps = vec![Step::FlushOwn(Name::clone(set))];
    if !wanted.is_empty() {
        steps.push(Step::AddOwn(Name::clone(set), wanted.to_vec()));
    }
    steps
}

/// Each range with its end, if it has one; the space before the first range is one by itself.
fn spans(elements: &[Element]) -> impl Iterator<Item = &[Element]> {
    elements.chunk_by(|element, next| !element.ends_range && next.ends_range)
}

fn place(span: &[Element]) -> Option<(Value, bool)> {
    span.first()
        .map(|element| (element.key, element.ends_range))
}
