//! Reads manifests again whenever they change.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use ferrule_core::track::Event;
use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::trail::Trail;
use super::{ManifestError, read};

/// Files must be left alone for so long before they are read again.
const QUIET: Duration = Duration::from_millis(50);
/// Files that are never left alone are read after so many times [`QUIET`].
const PATIENCE: usize = 10;

/// Manifests being watched, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    bell: Bell,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Not waiting for the thread: it may be inside `deliver`, waiting for us.
        self.bell.stopped.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Wakes the thread that reads. Ringing twice before it looks is ringing once.
#[derive(Clone, Debug)]
struct Bell {
    rung: SyncSender<()>,
    stopped: Arc<AtomicBool>,
}

impl Bell {
    fn ring(&self) {
        // Full means it was rung already, and disconnected means nobody is left to hear it.
        _ = self.rung.try_send(());
    }
}

/// Reads the manifests now and after every change, and hands each result to `deliver`.
///
/// An error is delivered like any other result, and the next change is awaited: who receives it
/// keeps what was good. The same content may be delivered again. It ends when `deliver` breaks
/// or the handle is dropped; a delivery that has begun by then still completes.
pub fn watch(
    path: &Path,
    node_name: &str,
    deliver: impl FnMut(Result<Vec<Event>, ManifestError>) -> ControlFlow<()> + Send + 'static,
) -> Result<Watch, ManifestError> {
    let (rung, heard) = mpsc::sync_channel(1);
    let bell = Bell {
        rung,
        stopped: Arc::default(),
    };
    let unwatchable = |source| ManifestError::Unwatchable {
        path: path.to_owned(),
        source: notify::Error::io(source),
    };
    let reader = Reader {
        path: path.to_owned(),
        absolute: std::path::absolute(path).map_err(unwatchable)?,
        node_name: node_name.to_owned(),
        bell: bell.clone(),
        heard,
    };
    // Listening begins here, so that a machine that cannot do it is told of at once.
    let watcher = reader.listen()?;
    thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || reader.run(watcher, deliver))
        .map_err(unwatchable)?;
    Ok(Watch { bell })
}

struct Reader {
    /// As given, for messages.
    path: PathBuf,
    absolute: PathBuf,
    node_name: String,
    bell: Bell,
    heard: Receiver<()>,
}

impl Reader {
    fn run(
        self,
        mut watcher: RecommendedWatcher,
        mut deliver: impl FnMut(Result<Vec<Event>, ManifestError>) -> ControlFlow<()>,
    ) {
        while deliver(read(&self.path, &self.node_name)).is_continue() && self.await_change() {
            // Links may lead elsewhere now, and a folder of the same name may be another one.
            // Listening before reading, so that no change falls between the two.
            let told = match self.listen() {
                Ok(fresh) => {
                    watcher = fresh;
                    ControlFlow::Continue(())
                }
                // The old one still hears most things, and after the next we try again.
                Err(error) => deliver(Err(error)),
            };
            if told.is_break() {
                break;
            }
        }
        drop(watcher);
    }

    /// Waits for a change, and then until nothing changes any more. Says whether to go on.
    fn await_change(&self) -> bool {
        if self.heard.recv().is_err() {
            return false;
        }
        for _ in 0..PATIENCE {
            if self.bell.stopped.load(Ordering::Acquire) {
                return false;
            }
            thread::sleep(QUIET);
            if self.heard.try_recv().is_err() {
                break;
            }
        }
        // The last ring may have been the one to stop.
        !self.bell.stopped.load(Ordering::Acquire)
    }

    /// Begins to listen for changes on the whole trail.
    ///
    /// Always with a new watcher: the old one may hold a folder that was since replaced by
    /// another of the same name.
    fn listen(&self) -> Result<RecommendedWatcher, ManifestError> {
        let mut trail = Arc::new(Trail::of(&self.absolute));
        loop {
            let watcher = listen_on(&trail, self.bell.clone());
            // What changed before we listened made no sound.
            let now = Arc::new(Trail::of(&self.absolute));
            if now == trail {
                let path = self.path.clone();
                return watcher.map_err(|source| ManifestError::Unwatchable { path, source });
            }
            trail = now;
        }
    }
}

fn listen_on(trail: &Arc<Trail>, bell: Bell) -> notify::Result<RecommendedWatcher> {
    let concerns = Arc::clone(trail);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // An error may mean lost events.
        if event.is_ok_and(|event| !is_change(&event, &concerns)) {
            return;
        }
        bell.ring();
    })?;
    for folder in trail.folders() {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// Whether an event may mean new content. Opening a file is an event too, and we do so ourselves.
fn is_change(event: &notify::Event, trail: &Trail) -> bool {
    let changed = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    changed && (event.need_rescan() || event.paths.iter().any(|path| trail.concerns(path)))
}
