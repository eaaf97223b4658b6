//! Watches a file or folder for changes of its content, whatever way they are made: in place, by a
//! rename over it, by a swapped link somewhere on its path, by deletion and return.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

mod trail;

use trail::Trail;

/// Files must be left alone for so long before they are read again.
const QUIET: Duration = Duration::from_millis(50);
/// Files that are never left alone are read after so many times [`QUIET`].
const MAX_ROUNDS: usize = 10;

/// The path cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {} for changes", path.display())]
pub struct FileWatchError {
    path: PathBuf,
    #[source]
    source: notify::Error,
}

/// A path being watched, until this is dropped.
#[derive(Debug)]
pub struct FileWatch {
    waker: Waker,
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        // Not waiting for the thread: it may be inside `on_change`, waiting for us.
        self.waker.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Wakes the thread that reads. Waking it twice before it runs is waking it once.
#[derive(Clone, Debug)]
struct Waker {
    sender: SyncSender<()>,
    stopped: Arc<AtomicBool>,
}

impl Waker {
    fn wake(&self) {
        // Full means a wake-up is pending already, and disconnected that the thread has ended.
        _ = self.sender.try_send(());
    }
}

/// Calls `on_change` now, and again after every change of the file or folder.
///
/// It may be called though nothing is different. When watching fails,
/// `on_change` gets the error, and the next change is awaited all the same. It ends when
/// `on_change` breaks or the handle is dropped; a call that has begun by then still completes.
pub fn watch(
    path: &Path,
    on_change: impl FnMut(Option<FileWatchError>) -> ControlFlow<()> + Send + 'static,
) -> Result<FileWatch, FileWatchError> {
    let (sender, wakeups) = mpsc::sync_channel(1);
    let waker = Waker {
        sender,
        stopped: Arc::default(),
    };
    let unwatchable = |source| FileWatchError {
        path: path.to_owned(),
        source: notify::Error::io(source),
    };
    let watch_loop = WatchLoop {
        path: path.to_owned(),
        absolute: std::path::absolute(path).map_err(unwatchable)?,
        waker: waker.clone(),
        wakeups,
    };
    // Listening begins here, so that a machine that cannot do it is an error at once.
    let watcher = watch_loop.listen()?;
    thread::Builder::new()
        .name("file-watch".to_owned())
        .spawn(move || watch_loop.run(watcher, on_change))
        .map_err(unwatchable)?;
    Ok(FileWatch { waker })
}

struct WatchLoop {
    /// As given, for messages.
    path: PathBuf,
    absolute: PathBuf,
    waker: Waker,
    wakeups: Receiver<()>,
}

impl WatchLoop {
    fn run(
        self,
        mut watcher: RecommendedWatcher,
        mut on_change: impl FnMut(Option<FileWatchError>) -> ControlFlow<()>,
    ) {
        let mut trouble = None;
        while on_change(trouble.take()).is_continue() && self.await_change() {
            // Links may lead elsewhere now, and a folder of the same name may be another one.
            // Listening before looking, so that no change falls between the two.
            match self.listen() {
                Ok(fresh) => watcher = fresh,
                // The old one still receives most events, and after the next we try again.
                Err(error) => trouble = Some(error),
            }
        }
        drop(watcher);
    }

    /// Waits for a change, and then until nothing changes any more. Says whether to go on.
    fn await_change(&self) -> bool {
        if self.wakeups.recv().is_err() {
            return false;
        }
        for _ in 0..MAX_ROUNDS {
            if self.waker.stopped.load(Ordering::Acquire) {
                return false;
            }
            thread::sleep(QUIET);
            if self.wakeups.try_recv().is_err() {
                break;
            }
        }
        // The last wake-up may have been the one to stop.
        !self.waker.stopped.load(Ordering::Acquire)
    }

    /// Begins to listen for changes on the whole trail.
    ///
    /// Always with a new watcher: the old one may hold a folder that was since replaced by
    /// another of the same name.
    fn listen(&self) -> Result<RecommendedWatcher, FileWatchError> {
        let mut trail = Arc::new(Trail::of(&self.absolute));
        loop {
            let watcher = listen_on(&trail, self.waker.clone());
            // What changed before we listened caused no event.
            let now = Arc::new(Trail::of(&self.absolute));
            if now == trail {
                let path = self.path.clone();
                return watcher.map_err(|source| FileWatchError { path, source });
            }
            trail = now;
        }
    }
}

fn listen_on(trail: &Arc<Trail>, waker: Waker) -> notify::Result<RecommendedWatcher> {
    let concerns = Arc::clone(trail);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // An error may mean lost events.
        if event.is_ok_and(|event| !is_change(&event, &concerns)) {
            return;
        }
        waker.wake();
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
