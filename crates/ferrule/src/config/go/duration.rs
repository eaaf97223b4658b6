//! Lengths of time as Go writes them: `1h30m`, `250ms`, `-1s`.
//!
//! Signed, because a negative period can be written and must be refused by validation with the
//! value that was written, not by the parser.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A signed length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The largest magnitude: that of the most negative duration.
const LIMIT: u64 = 1 << 63;

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Whole seconds.
    pub const fn from_secs(seconds: i32) -> Self {
        // An i32 of seconds is far from overflowing.
        Self(seconds as i64 * 1_000_000_000)
    }

    /// Nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The standard library's duration; negative ones, which validation refuses, count as zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Reads numbers with units `ns us µs ms s m h`; only zero may go without a unit.
    ///
    /// # Errors
    /// What is wrong with the text, in Go's words.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let part;
            (part, rest) = one_part(text, rest)?;
            total = total
                .checked_add(part)
                .filter(|total| *total <= LIMIT)
                .ok_or_else(invalid)?;
        }
        match i64::try_from(total) {
            Ok(nanos) => Ok(Self(if negative { -nanos } else { nanos })),
            Err(_) if negative => Ok(Self(i64::MIN)),
            Err(_) => Err(invalid()),
        }
    }
}

/// Reads one number with its unit from the front of `rest`; returns nanoseconds and what follows.
fn one_part<'a>(whole: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(whole.to_owned());
    let (digits, mut rest) = split_where(rest, |b| !b.is_ascii_digit());
    let number: u64 = if digits.is_empty() {
        0
    } else {
        digits
            .parse()
            .ok()
            .filter(|number| *number <= LIMIT)
            .ok_or_else(invalid)?
    };
    let mut fraction = "";
    if let Some(after_point) = rest.strip_prefix('.') {
        (fraction, rest) = split_where(after_point, |b| !b.is_ascii_digit());
    }
    if digits.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let (unit, rest) = split_where(rest, |b| b == b'.' || b.is_ascii_digit());
    let scale = match unit {
        "" => return Err(DurationError::MissingUnit(whole.to_owned())),
        "ns" => 1,
        // Micro sign and Greek mu look alike; both are accepted.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        unit => {
            return Err(DurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: whole.to_owned(),
            });
        }
    };
    let nanos = number
        .checked_mul(scale)
        .and_then(|nanos| nanos.checked_add(part_of(fraction, scale)))
        .filter(|nanos| *nanos <= LIMIT)
        .ok_or_else(invalid)?;
    Ok((nanos, rest))
}

/// `0.fraction` of `scale`, rounded down. Digits beyond nanoseconds of an hour change nothing.
fn part_of(fraction: &str, scale: u64) -> u64 {
    let mut sum: u128 = 0;
    let mut divisor: u128 = 1;
    for digit in fraction.bytes().take(18) {
        sum = sum * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    u64::try_from(sum * u128::from(scale) / divisor).unwrap_or(0)
}

fn split_where(text: &str, ends: impl Fn(u8) -> bool) -> (&str, &str) {
    let at = text.bytes().position(ends).unwrap_or(text.len());
    text.split_at(at)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let (scale, unit) = match nanos {
            0 => return f.write_str("0s"),
            n if n < MICROSECOND => (1, "ns"),
            n if n < MILLISECOND => (MICROSECOND, "µs"),
            n if n < SECOND => (MILLISECOND, "ms"),
            _ => (SECOND, "s"),
        };
        let (hours, minutes) = (nanos / HOUR, nanos % HOUR / MINUTE);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        let last = nanos % MINUTE;
        write!(f, "{}", last / scale)?;
        let width = usize::try_from(scale.ilog10()).unwrap_or(0);
        let fraction = format!("{:0width$}", last % scale);
        let fraction = fraction.trim_end_matches('0');
        if !fraction.is_empty() {
            write!(f, ".{fraction}")?;
        }
        f.write_str(unit)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A null is a field left out, not an empty text.
        let text = Option::<String>::deserialize(deserializer)?;
        text.map_or(Ok(Self::ZERO), |text| Self::parse(&text))
            .map_err(de::Error::custom)
    }
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It has no shape of a duration, or is too long a time.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number other than zero without a unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit nobody knows.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// Quotes the way Go's `time` package does, which escapes every byte beyond ASCII.
fn quote(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    format!("\"{}\"", text.bytes().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_like_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("0s", "0s"),
            ("5s", "5s"),
            ("15m", "15m0s"),
            ("1h", "1h0m0s"),
            ("24h", "24h0m0s"),
            ("1h30m", "1h30m0s"),
            ("90s", "1m30s"),
            ("1.5s", "1.5s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("1500us", "1.5ms"),
            ("1500µs", "1.5ms"),
            ("1500μs", "1.5ms"),
            ("1ns", "1ns"),
            ("1.5us", "1.5µs"),
            ("-1s", "-1s"),
            ("-1.5h", "-1h30m0s"),
            ("+5s", "5s"),
            ("1h0.5s", "1h0m0.5s"),
            ("0.000000001s", "1ns"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
            ("-2562047h47m16.854775808s", "-2562047h47m16.854775808s"),
        ] {
            let parsed = GoDuration::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(parsed.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_in_gos_words() {
        for (text, message) in [
            ("5", "time: missing unit in duration \"5\""),
            ("5x", "time: unknown unit \"x\" in duration \"5x\""),
            ("", "time: invalid duration \"\""),
            ("s", "time: invalid duration \"s\""),
            (".", "time: invalid duration \".\""),
            ("-", "time: invalid duration \"-\""),
            (" 5s", "time: invalid duration \" 5s\""),
            ("1h 5s", "time: unknown unit \"h \" in duration \"1h 5s\""),
            (
                "1é",
                "time: unknown unit \"\\xc3\\xa9\" in duration \"1\\xc3\\xa9\"",
            ),
            ("9999999h", "time: invalid duration \"9999999h\""),
            (
                "99999999999999999999s",
                "time: invalid duration \"99999999999999999999s\"",
            ),
        ] {
            let error = GoDuration::parse(text).unwrap_err().to_string();
            assert_eq!(error, message, "{text:?}");
        }
    }

    #[test]
    fn negative_times_are_no_time_for_a_timer() {
        assert_eq!(GoDuration::from_secs(-1).to_std(), Duration::ZERO);
        assert_eq!(GoDuration::from_secs(2).to_std(), Duration::from_secs(2));
    }
}
