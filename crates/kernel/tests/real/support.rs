//! Goldens for tests.

pub use ferrule_testbed::{in_namespace, leave_out, run};

pub use crate::tap::{Tap, captured, pick};

/// Compares with a file in `testdata`, or renews that file when `UPDATE_EXPECT` is set.
pub fn expect(name: &str, actual: &str) {
    ferrule_testbed::expect(&crate::tap::testdata(name), actual);
}
