//! Notices that a file or folder may say something else, whatever way it was changed: in place, by
//! a rename over it, by a swapped link somewhere on its path, by deletion and return.

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
const PATIENCE: usize = 10;

/// Changes cannot be noticed.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {} for changes", path.display())]
pub struct FollowError {
    path: PathBuf,
    #[source]
    source: notify::Error,
}

/// A path being followed, until this is dropped.
#[derive(Debug)]
pub struct Follow {
    bell: Bell,
}

impl Drop for Follow {
    fn drop(&mut self) {
        // Not waiting for the thread: it may be inside `look`, waiting for us.
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

/// Calls `look` now, and again after every change of the file or folder.
///
/// It may be called though nothing is different. A change that cannot be waited for any more is
/// told by `look` getting the error; the next change is awaited all the same. It ends when `look`
/// breaks or the handle is dropped; a call that has begun by then still completes.
pub fn follow(
    path: &Path,
    look: impl FnMut(Option<FollowError>) -> ControlFlow<()> + Send + 'static,
) -> Result<Follow, FollowError> {
    let (rung, heard) = mpsc::sync_channel(1);
    let bell = Bell {
        rung,
        stopped: Arc::default(),
    };
    let unwatchable = |source| FollowError {
        path: path.to_owned(),
        source: notify::Error::io(source),
    };
    let follower = Follower {
        path: path.to_owned(),
        absolute: std::path::absolute(path).map_err(unwatchable)?,
        bell: bell.clone(),
        heard,
    };
    // Listening begins here, so that a machine that cannot do it is told of at once.
    let watcher = follower.listen()?;
    thread::Builder::new()
        .name("follow".to_owned())
        .spawn(move || follower.run(watcher, look))
        .map_err(unwatchable)?;
    Ok(Follow { bell })
}

struct Follower {
    /// As given, for messages.
    path: PathBuf,
    absolute: PathBuf,
    bell: Bell,
    heard: Receiver<()>,
}

impl Follower {
    fn run(
        self,
        mut watcher: RecommendedWatcher,
        mut look: impl FnMut(Option<FollowError>) -> ControlFlow<()>,
    ) {
        let mut trouble = None;
        while look(trouble.take()).is_continue() && self.await_change() {
            // Links may lead elsewhere now, and a folder of the same name may be another one.
            // Listening before looking, so that no change falls between the two.
            match self.listen() {
                Ok(fresh) => watcher = fresh,
                // The old one still hears most things, and after the next we try again.
                Err(error) => trouble = Some(error),
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
    fn listen(&self) -> Result<RecommendedWatcher, FollowError> {
        let mut trail = Arc::new(Trail::of(&self.absolute));
        loop {
            let watcher = listen_on(&trail, self.bell.clone());
            // What changed before we listened made no sound.
            let now = Arc::new(Trail::of(&self.absolute));
            if now == trail {
                let path = self.path.clone();
                return watcher.map_err(|source| FollowError { path, source });
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
