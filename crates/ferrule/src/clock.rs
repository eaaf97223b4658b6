//! The clock of the servers: one reading of the monotonic clock, which measures, and of the wall clock.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Now, as the machine counts and as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Never goes back; differences are real durations.
    pub steady: Instant,
    /// What the calendar says; may be set.
    pub wall: Timestamp,
}

/// Where time comes from: the machine, or a test.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

impl Time {
    /// Reads the machine's clocks.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the servers read the clock"
    )]
    pub fn now() -> Self {
        Self {
            steady: Instant::now(),
            wall: Timestamp::now(),
        }
    }
}

/// A time as Go writes it in JSON: RFC 3339 with as many digits as needed, `Z` for UTC.
pub fn rfc3339(time: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(time);
    if offset.is_zero() {
        return time.to_string();
    }
    time.display_with_offset(offset).to_string()
}

#[cfg(test)]
mod tests {
    use jiff::tz::offset;

    use super::*;

    #[test]
    fn times_are_trimmed_and_carry_their_offset() {
        let text =
            |time: &str, hours| rfc3339(time.parse().unwrap(), &offset(hours).to_time_zone());
        assert_eq!(
            text("2025-01-02T03:04:05.678901000Z", 0),
            "2025-01-02T03:04:05.678901Z"
        );
        assert_eq!(text("2025-01-02T03:04:05Z", 0), "2025-01-02T03:04:05Z");
        assert_eq!(
            text("2025-01-02T03:04:05.1Z", 2),
            "2025-01-02T05:04:05.1+02:00"
        );
    }
}
