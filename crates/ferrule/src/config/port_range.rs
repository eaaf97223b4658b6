//! Ranges of ports as people write them: `--proxy-port-range`, `portRange`.

use std::ops::RangeInclusive;

/// Reads `A-B`, `A+N` (from A to A+N) or `N`. Nothing, `0` and `0-0` mean any port: `None`.
///
/// # Errors
/// It is none of these, ends before it begins, or has no such ports.
pub fn parse(text: &str) -> Result<Option<RangeInclusive<u16>>, Malformed> {
    let text = text.trim();
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| Malformed);
    let (first, last) = if text.is_empty() {
        (0, 0)
    } else if let Some((first, last)) = text.split_once('-') {
        (number(first)?, number(last)?)
    } else if let Some((first, more)) = text.split_once('+') {
        let first = number(first)?;
        (first, first.checked_add(number(more)?).ok_or(Malformed)?)
    } else {
        let only = number(text)?;
        (only, only)
    };
    match (first, last) {
        (0, 0) => Ok(None),
        (0, _) => Err(Malformed),
        _ if last < first => Err(Malformed),
        _ => Ok(Some(first..=last)),
    }
}

/// It is no range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usp_002_ranges_of_ports_have_three_forms() {
        for any in ["", " ", "0", "0-0", "0+0"] {
            assert_eq!(parse(any), Ok(None), "{any:?}");
        }
        for (text, range) in [
            ("40000", 40000..=40000),
            ("40000-40010", 40000..=40010),
            (" 40000 - 40010 ", 40000..=40010),
            ("40000+10", 40000..=40010),
            ("1-65535", 1..=65535),
        ] {
            assert_eq!(parse(text), Ok(Some(range)), "{text:?}");
        }
        for bad in [
            "a", "1-", "-1", "2-1", "1-65536", "65530+6", "1-2-3", "1+2-3", "0-5", "+",
        ] {
            assert_eq!(parse(bad), Err(Malformed), "{bad:?}");
        }
    }
}
