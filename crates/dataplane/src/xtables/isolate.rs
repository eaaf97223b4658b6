//! Finds which of many are refused, where the error does not say.

use super::error::TablesError;

/// Those among the suspects that are refused, each with its error: halves are tried until a culprit
/// is alone. After so many culprits the search ends.
///
/// An attempt must not depend on those before it, and be made where it does no harm.
pub fn culprits<T: Copy>(
    suspects: &[T],
    most: usize,
    attempt: &mut dyn FnMut(&[T]) -> Result<(), TablesError>,
) -> Vec<(T, TablesError)> {
    let Err(error) = attempt(suspects) else {
        return Vec::new();
    };
    if let [only] = suspects {
        return vec![(*only, error)];
    }
    let (left, right) = suspects.split_at(suspects.len() / 2);
    let mut found = Vec::new();
    for half in [left, right] {
        if !half.is_empty() && found.len() < most {
            found.extend(culprits(half, most - found.len(), attempt));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::error::LinkError;
    use super::*;

    fn search(suspects: &[u32], most: usize, bad: &[u32]) -> (Vec<u32>, usize) {
        let mut attempts = 0;
        let found = culprits(suspects, most, &mut |tried| {
            attempts += 1;
            if tried.iter().any(|number| bad.contains(number)) {
                return Err(LinkError::Encoding.into());
            }
            Ok(())
        });
        (
            found.into_iter().map(|(number, _)| number).collect(),
            attempts,
        )
    }

    #[test]
    fn culprits_are_found_by_halves() {
        let all: Vec<u32> = (0..100).collect();
        for bad in [&[][..], &[0], &[99], &[17, 18, 80]] {
            let (found, attempts) = search(&all, 64, bad);
            assert_eq!(found, bad);
            assert!(attempts <= 1 + 14 * bad.len(), "{attempts}");
        }
        assert_eq!(search(&[], 64, &[1]), (vec![], 1));
        let (found, attempts) = search(&all, 3, &all);
        assert_eq!(found, [0, 1, 2]);
        assert!(attempts < 20, "{attempts}");
    }
}
