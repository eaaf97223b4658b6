//! The Kubernetes release this program stands in for. No other file names it.

/// What `--version` prints.
pub const KUBERNETES: &str = "v1.36.4";

/// `1` and `36`
pub fn major_and_minor() -> (&'static str, &'static str) {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next())
}
