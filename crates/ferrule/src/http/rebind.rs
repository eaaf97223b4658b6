//! A server at a configured address that can be rebound: it retries until it can listen, and moves
//! to another address while it runs.
//!
//! In: what it serves, its address, and whether a failure to listen is fatal. Out: a port that
//! answers; or, if so configured, the one error that ends the process.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Handler;
use super::listen::{ListenError, Network};
use super::serve::Server;

#[cfg(test)]
mod tests;

/// How long to wait before an address is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What a server is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The health of the proxy.
    ProxyHealth,
    /// Metrics and what goes with them.
    Metrics,
}

impl Role {
    /// The reason of the event that reports a fatal failure; its note is the error.
    pub const fn event_reason(self) -> &'static str {
        match self {
            Self::ProxyHealth => "FailedToStartProxierHealthcheck",
            Self::Metrics => "FailedToStartMetricServer",
        }
    }
}

/// The action of the event that reports a fatal failure.
pub const EVENT_ACTION: &str = "StartKubeProxy";

/// A server could not listen at its first address.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The health server.
    #[error("healthz server failed: failed to start proxy healthz on {address}: {cause}")]
    ProxyHealth {
        /// Its address.
        address: SocketAddr,
        /// Why it cannot listen.
        cause: ListenError,
    },
    /// The metrics server.
    #[error("{0}")]
    Metrics(ListenError),
}

/// A server at a configured address.
#[derive(Debug)]
pub struct RebindingServer {
    wanted: watch::Sender<SocketAddr>,
    serving: watch::Receiver<Option<SocketAddr>>,
    /// Ends with the reason when a failure is fatal, and without one when it is closed; `None`
    /// after that was seen.
    task: Option<JoinHandle<Option<ServerError>>>,
}

impl RebindingServer {
    /// Serves at `address`. A failure to get there is tried again every five seconds and logged
    /// each time; with `hard_fail` the first one is final, see [`RebindingServer::failed`].
    pub fn open(
        runtime: &Handle,
        role: Role,
        address: SocketAddr,
        hard_fail: bool,
        handler: Handler,
    ) -> Self {
        let (wanted, wanted_addresses) = watch::channel(address);
        let (report, serving) = watch::channel(None);
        let task = Task {
            runtime: runtime.clone(),
            role,
            handler,
            open: None,
            report,
        };
        Self {
            wanted,
            serving,
            task: Some(runtime.spawn(task.run(wanted_addresses, hard_fail))),
        }
    }

    /// Moves to another address. The old one answers until the new one does, unless the two
    /// exclude each other. A failure here is never fatal: the old address is kept, the new one
    /// tried again.
    pub fn rebind(&self, address: SocketAddr) {
        self.wanted
            .send_if_modified(|wanted| std::mem::replace(wanted, address) != address);
    }

    /// Where it answers now.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests ask"))]
    pub fn address(&self) -> Option<SocketAddr> {
        *self.serving.borrow()
    }

    /// Waits for the failure that ends the process; for ever if there is none.
    pub async fn failed(&mut self) -> ServerError {
        if let Some(task) = &mut self.task {
            let ended = task.await;
            self.task = None;
            if let Ok(Some(error)) = ended {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Stops answering, after answers under way are out.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the program ends without ceremony")
    )]
    pub async fn close(self) {
        drop(self.wanted);
        if let Some(task) = self.task {
            // Fatal or not, it has ended.
            let _ended = task.await;
        }
    }
}

/// The task behind a server.
struct Task {
    runtime: Handle,
    role: Role,
    handler: Handler,
    /// The address that was asked for, and the server there.
    open: Option<(SocketAddr, Server)>,
    report: watch::Sender<Option<SocketAddr>>,
}

impl Task {
    async fn run(
        mut self,
        mut wanted_addresses: watch::Receiver<SocketAddr>,
        hard_fail: bool,
    ) -> Option<ServerError> {
        let mut first = true;
        loop {
            let address = *wanted_addresses.borrow_and_update();
            let result = self.move_to(address);
            let serving = self.open.as_ref().map(|(_, server)| server.address());
            self.report.send_replace(serving);
            let retry = result.is_err();
            if let Err(cause) = result {
                let error = self.role.explain(address, cause);
                if hard_fail && first {
                    return Some(error);
                }
            }
            first = false;
            tokio::select! {
                wish = wanted_addresses.changed() => if wish.is_err() { break },
                () = sleep(RETRY), if retry => {}
            }
        }
        if let Some((_, server)) = self.open {
            server.finish().await;
        }
        None
    }

    /// Opens `address` and leaves the former one, in the order that is possible.
    fn move_to(&mut self, address: SocketAddr) -> Result<(), ListenError> {
        if matches!(&self.open, Some((asked, _)) if *asked == address) {
            return Ok(());
        }
        let server = match (self.listen(address), self.open.take()) {
            (Ok(server), former) => {
                if let Some((_, former)) = former {
                    self.runtime.spawn(former.finish());
                }
                server
            }
            // Our own wildcard, or the address below it, may be what is in the way.
            (Err(error), Some((asked, former))) if error.is_in_use() && overlap(asked, address) => {
                self.runtime.spawn(former.finish());
                match self.listen(address) {
                    Ok(server) => server,
                    Err(error) => {
                        self.open = self.listen(asked).ok().map(|server| (asked, server));
                        return Err(error);
                    }
                }
            }
            (Err(error), former) => {
                self.open = former;
                return Err(error);
            }
        };
        self.open = Some((address, server));
        Ok(())
    }

    fn listen(&self, address: SocketAddr) -> Result<Server, ListenError> {
        Server::open(&self.runtime, Network::Tcp, address, self.handler.clone())
    }
}

/// Whether a port at one address excludes the other.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && (a.ip().is_unspecified() || b.ip().is_unspecified())
}

impl Role {
    /// Logs a failed attempt in kube-proxy's words, and names it for whoever must end.
    fn explain(self, address: SocketAddr, cause: ListenError) -> ServerError {
        match self {
            Self::ProxyHealth => {
                tracing::error!(
                    err = %format_args!("failed to start proxy healthz on {address}: {cause}"),
                    "Healthz server failed"
                );
                ServerError::ProxyHealth { address, cause }
            }
            Self::Metrics => {
                tracing::error!(err = %cause, "starting metrics server failed");
                ServerError::Metrics(cause)
            }
        }
    }
}
