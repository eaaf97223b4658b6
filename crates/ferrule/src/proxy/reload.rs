//! A configuration file that changes while the program runs.
//!
//! What can change without a restart does. For the rest the program ends, so that its supervisor
//! starts it with the new file. A file that cannot be used changes nothing.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use tokio::sync::mpsc;

use crate::config::options::{self, Options};
use crate::config::reload::{Change, Reload, reload};
use crate::config::{Config, flags::Flags};
use crate::file_watch::{self, FileWatch, FileWatchError};

/// What a new file asks for.
pub enum Order {
    /// Go on with this.
    Adopt(Box<Config>),
    /// End, and start again.
    Restart,
}

/// Watches the file for as long as the handle lives.
pub fn watch(
    file: &Path,
    options: &Options,
    orders: mpsc::Sender<Order>,
) -> Result<FileWatch, FileWatchError> {
    let mut running = options.config.clone();
    let flags = options.flags.clone();
    file_watch::watch(file, move |trouble| {
        if let Some(error) = trouble {
            tracing::warn!(err = %error, "Changes of the configuration file may go unnoticed");
        }
        let Some(order) = consider(&mut running, &flags) else {
            return ControlFlow::Continue(());
        };
        match orders.blocking_send(order) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })
}

/// Compares the file with what is running.
fn consider(running: &mut Config, flags: &Flags) -> Option<Order> {
    let wanted = options::complete(
        flags.clone(),
        |path| fs::read_to_string(path),
        super::os_hostname,
    );
    let wanted = match wanted {
        Ok(options) => options.config,
        Err(failure) => {
            tracing::error!(err = %failure.error, "The new configuration cannot be used; the running one stays");
            return None;
        }
    };
    match reload(running, &wanted) {
        Reload::Nothing => None,
        Reload::Live(changes) => {
            tell(&changes);
            running.clone_from(&wanted);
            Some(Order::Adopt(Box::new(wanted)))
        }
        Reload::Restart(changes) => {
            tell(&changes);
            Some(Order::Restart)
        }
    }
}

fn tell(changes: &[Change]) {
    for Change {
        field,
        from,
        to,
        live,
    } in changes
    {
        tracing::info!(
            field,
            from,
            to,
            restart = !live,
            "The configuration file was changed"
        );
    }
}
