//! Ranges of one field: from pairs of first and last to the elements of an interval set, and back.
//!
//! In such a set an element begins a range and another one, marked, ends it. Ranges must not touch
//! or overlap; the kernel would refuse them, so they are merged here.

use super::element::Element;
use super::value::Value;

/// The elements of an interval set that contains exactly these ranges, both ends included.
///
/// They are the ones that `nft` would make: the space before the first range is marked as outside,
/// and a range up to the very last value has no end.
pub fn elements(ranges: impl IntoIterator<Item = (Value, Value)>) -> Vec<Element> {
    let mut ranges: Vec<_> = ranges
        .into_iter()
        .filter(|(first, last)| first <= last)
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(Value, Value)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if following(*end).is_none_or(|next| first <= next) => {
                *end = last.max(*end);
            }
            _ => merged.push((first, last)),
        }
    }
    let mut elements = Vec::with_capacity(merged.len() * 2 + 1);
    if let Some((first, _)) = merged.first()
        && first.as_bytes().iter().any(|byte| *byte != 0)
    {
        elements.push(end(filled(*first, 0)));
    }
    for (first, last) in merged {
        elements.push(Element::new(first));
        elements.extend(following(last).map(end));
    }
    elements
}

/// The ranges that the elements of an interval set describe, in order.
pub fn ranges(elements: &[Element]) -> Vec<(Value, Value)> {
    let mut sorted: Vec<_> = elements.iter().map(|e| (e.key, e.ends_range)).collect();
    sorted.sort_unstable();
    let mut ranges = Vec::new();
    let mut open = None;
    for (key, ends) in sorted {
        if let Some(first) = open.take() {
            ranges.extend(preceding(key).map(|last| (first, last)));
        }
        open = (!ends).then_some(key);
    }
    if let Some(first) = open {
        ranges.push((first, filled(first, u8::MAX)));
    }
    ranges
}

fn end(key: Value) -> Element {
    Element {
        ends_range: true,
        ..Element::new(key)
    }
}

/// The value that comes next, read as a number in network order.
fn following(value: Value) -> Option<Value> {
    step(value, u8::MAX, |byte| byte.wrapping_add(1))
}

/// The value that comes before.
fn preceding(value: Value) -> Option<Value> {
    step(value, 0, |byte| byte.wrapping_sub(1))
}

/// Changes the last byte, and the one before for as long as they are `turning`.
fn step(mut value: Value, turning: u8, change: impl Fn(u8) -> u8) -> Option<Value> {
    let bytes = value.as_bytes_mut();
    let from = bytes.iter().rposition(|byte| *byte != turning)?;
    for byte in &mut bytes[from..] {
        *byte = change(*byte);
    }
    Some(value)
}

/// As long as another value, and all bytes the same.
fn filled(mut value: Value, byte: u8) -> Value {
    value.as_bytes_mut().fill(byte);
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(byte: u8) -> Value {
        Value::new().field(&[byte])
    }

    #[test]
    fn touching_and_overlapping_ranges_are_merged() {
        let merged =
            elements([(1, 3), (4, 6), (5, 9), (20, 20)].map(|(a, b)| (value(a), value(b))));
        let keys: Vec<_> = merged
            .iter()
            .map(|e| (e.key.as_bytes()[0], e.ends_range))
            .collect();
        assert_eq!(
            keys,
            [(0, true), (1, false), (10, true), (20, false), (21, true)]
        );
    }

    #[test]
    fn a_range_over_everything_has_no_ends() {
        let all = elements([(value(0), value(255))]);
        assert_eq!(all, [Element::new(value(0))]);
        assert_eq!(ranges(&all), [(value(0), value(255))]);
        assert_eq!(elements([]), []);
    }

    proptest! {
        #[test]
        fn what_is_in_a_range_stays_in_one(pairs in proptest::collection::vec(any::<(u8, u8)>(), 0..8)) {
            let given: Vec<_> = pairs.iter().map(|&(a, b)| (value(a), value(b))).collect();
            let back = ranges(&elements(given.iter().copied()));
            for byte in 0..=255 {
                let inside = |ranges: &[(Value, Value)]| {
                    ranges.iter().any(|(a, b)| (*a..=*b).contains(&value(byte)))
                };
                prop_assert_eq!(inside(&given), inside(&back), "{}", byte);
            }
            prop_assert!(back.windows(2).all(|pair| following(pair[0].1) < Some(pair[1].0)));
        }
    }
}
