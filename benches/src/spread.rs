//! Many timings, summed up by median and extremes.

use std::fmt;
use std::time::Duration;

/// Sorted timings.
pub struct Spread(Vec<Duration>);

impl Spread {
    /// At least one timing.
    pub fn new(mut timings: Vec<Duration>) -> Self {
        assert!(!timings.is_empty(), "a spread needs a timing");
        timings.sort_unstable();
        Self(timings)
    }

    /// The middle one.
    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// The one that `percent` percent do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

/// `median (least–most)`
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.percentile(0), self.percentile(100));
        write!(
            f,
            "{} ({}–{})",
            human(self.median()),
            human(least),
            human(most)
        )
    }
}

/// A duration in the unit a person would use.
pub fn human(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        m if m < 1_000.0 => format!("{m:.1} µs"),
        m if m < 1_000_000.0 => format!("{:.1} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}
