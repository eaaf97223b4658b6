//! Takes over from the process before this one, and makes way for the one after it, in a mode whose
//! connections this process carries.

use std::sync::Arc;
use std::thread;

use ferrule_dataplane::error_chain;
use ferrule_dataplane::userspace::Process;
use tokio::sync::mpsc;

use crate::sync::Input;

/// What it takes.
pub struct Succession {
    /// What carries connections.
    pub relay: Arc<Process>,
    /// Tries again what the predecessor still had.
    pub sync: mpsc::Sender<Input>,
    /// Told when there is a successor.
    pub replaced: mpsc::Sender<()>,
}

impl Succession {
    /// Begins, now that everything is programmed. Does not wait for it.
    pub fn begin(self) {
        let name = thread::Builder::new().name("succession".to_owned());
        if let Err(error) = name.spawn(move || self.take_over()) {
            tracing::error!(err = %error, "Failed to take over from the process before this one");
        }
    }

    fn take_over(self) {
        let replaced = self.replaced;
        // Nobody waits for it any more when the program is ending anyway.
        let taken = self.relay.take_over(move || _ = replaced.blocking_send(()));
        match taken {
            Ok(true) => {
                tracing::info!("Took over from the process before this one");
                drop(self.sync.blocking_send(Input::Retry));
            }
            Ok(false) => {}
            Err(error) => {
                let err = error_chain(&error);
                tracing::error!(err, "Failed to take over from the process before this one");
            }
        }
    }
}
