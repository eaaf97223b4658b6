//! The inputs of sync, out of the channel in which the async side puts them.

use std::time::Instant;

use ferrule_core::track::Event;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout_at;

use crate::sync::{Input, Next, Source};
use crate::watch::kubernetes::Rest;

impl From<Vec<Event>> for Input {
    fn from(events: Vec<Event>) -> Self {
        Self::Cluster(events)
    }
}

/// The receiving end, for the one plain thread that is sync.
pub struct Channel {
    receiver: Receiver<Input>,
    runtime: Handle,
    rest: Rest,
}

impl Channel {
    /// Waits by means of `runtime`, which another thread drives. Tells `rest` when there is no
    /// hurry.
    pub fn new(receiver: Receiver<Input>, runtime: Handle, rest: Rest) -> Self {
        Self {
            receiver,
            runtime,
            rest,
        }
    }
}

impl Source for Channel {
    fn next(&mut self, deadline: Instant) -> Next {
        let receiver = &mut self.receiver;
        let waited = self
            .runtime
            .block_on(async { timeout_at(deadline.into(), receiver.recv()).await });
        match waited {
            Ok(Some(input)) => Next::Input(input),
            Ok(None) => Next::Ended,
            Err(_) => Next::Late,
        }
    }

    fn try_next(&mut self) -> Option<Input> {
        self.receiver.try_recv().ok()
    }

    fn rest(&mut self, now: Instant, until: Instant) {
        self.rest.until(now.into(), until.into());
    }
}
