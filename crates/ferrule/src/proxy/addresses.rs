//! Follows the addresses of this machine's interfaces, and tells sync.

use std::io;
use std::thread;
use std::time::Duration;

use ferrule_dataplane::error_chain;
use ferrule_dataplane::host::Addresses;
use tokio::sync::mpsc;

use crate::sync::Input;

/// How long to wait for a change; it only matters that it is long.
const TIMEOUT: Duration = Duration::from_hours(1);

/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Tells sync of every change, until sync is gone.
///
/// # Errors
/// There is no thread to be had.
pub fn follow(mut addresses: Addresses, sync: mpsc::Sender<Input>) -> io::Result<()> {
    let thread = thread::Builder::new().name("addresses".to_owned());
    let work = move || {
        while !sync.is_closed() {
            match addresses.changed(TIMEOUT) {
                Ok(true) => {
                    // When sync is gone, so is everything else.
                    _ = sync.blocking_send(Input::Addresses(addresses.list()));
                }
                Ok(false) => {}
                Err(error) => {
                    let err = error_chain(&error);
                    tracing::warn!(
                        err,
                        "Failed to watch addresses of interfaces; keeping the last known ones"
                    );
                    thread::sleep(RETRY);
                }
            }
        }
    };
    thread.spawn(work).map(drop)
}
