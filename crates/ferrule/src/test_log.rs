//! The one subscriber of a test process: whoever reads log lines has a layer here.
//!
//! There can be only one, because tracing remembers for all threads whether anybody listens.

use std::sync::Once;

use tracing_subscriber::layer::SubscriberExt as _;

use crate::http::testing::log::Collect;
use crate::watch::kubernetes::tests::log::ToThread;

/// Listens from now on; again is the same as once.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Collect).with(ToThread);
        tracing::subscriber::set_global_default(subscriber).expect("nobody else does this");
    });
}
