//! Many timings, summed up by median and extremes.

use std::time::Duration;

/// Sorted timings.
pub struct Spread(Vec<Duration>);

impl Spread {
    pub fn new(mut timings: Vec<Duration>) -> Self {
        timings.sort_unstable();
        Self(timings)
    }

    /// What so many percent do not exceed, in seconds; not a number when there are no timings.
    pub fn seconds(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        // Rounded up: the worst of fifty is their 99th percentile.
        let at = (last * percent).div_ceil(100);
        self.0.get(at).map_or(f64::NAN, Duration::as_secs_f64)
    }
}

/// The middle of some figures, with the least and the most.
pub fn middle(mut figures: Vec<f64>) -> Option<(f64, f64, f64)> {
    figures.retain(|figure| figure.is_finite());
    figures.sort_by(f64::total_cmp);
    let (first, last) = (*figures.first()?, *figures.last()?);
    let (low, high) = (figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
    Some((f64::midpoint(low, high), first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_include_both_ends() {
        let spread = Spread::new((1..=50).rev().map(Duration::from_secs).collect());
        let seconds = [0, 50, 99].map(|percent| spread.seconds(percent).to_string());
        assert_eq!(seconds, ["1", "26", "50"]);
        assert!(Spread::new(Vec::new()).seconds(50).is_nan());
    }

    #[test]
    fn the_middle_of_two_lies_between_them() {
        assert_eq!(middle(vec![3.0, 1.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(middle(vec![f64::NAN]), None);
    }
}
