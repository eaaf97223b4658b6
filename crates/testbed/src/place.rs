//! A network namespace that lives as long as its value, and a thread in it that runs what it is
//! given.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ferrule_kernel::netns;

use crate::{feed, try_feed};

type Job = Box<dyn FnOnce() + Send>;

/// A network of its own. Sockets that are opened there stay there, whoever uses them.
#[derive(Clone, Debug)]
pub struct Place {
    jobs: Sender<Job>,
    thread: String,
}

impl Place {
    /// A new network without anything in it.
    ///
    /// # Errors
    /// `PermissionDenied` without the right to make one.
    pub fn new() -> io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (ready, made) = channel();
        let failed = ready.clone();
        std::thread::spawn(move || {
            let result = netns::isolated(move || {
                // The number of this thread, by which others name its network.
                let link = std::fs::read_link("/proc/thread-self");
                let number = link.map(|link| {
                    let name = link.file_name().unwrap_or_default();
                    name.to_string_lossy().into_owned()
                });
                drop(ready.send(number));
                for job in todo {
                    job();
                }
            });
            if let Err(error) = result {
                drop(failed.send(Err(error)));
            }
        });
        let thread = made.recv().map_err(io::Error::other)??;
        Ok(Self { jobs, thread })
    }

    /// Does something there, and returns what came of it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result) = channel();
        let job = move || drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
        self.jobs.send(Box::new(job)).unwrap();
        result
            .recv()
            .unwrap()
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs lines of `ip` there.
    pub fn ip(&self, lines: &str) {
        let lines = lines.to_owned();
        self.run(move || feed("ip", &["-batch", "-"], &lines));
    }

    /// The same for lines that succeed once something else is ready.
    pub fn ip_in_the_end(&self, lines: &str) {
        for _ in 0..1000 {
            let lines = lines.to_owned();
            let output = self.run(move || try_feed("ip", &["-batch", "-"], &lines));
            if output.status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ip(lines);
    }

    /// Writes settings of this network that not every kernel has there.
    pub fn set_if_there(&self, settings: &[(&'static str, &'static str)]) {
        let settings = settings.to_vec();
        self.run(move || {
            for (name, value) in settings {
                drop(std::fs::write(format!("/proc/sys/net/{name}"), value));
            }
        });
    }

    /// Writes settings of this network: names below `/proc/sys/net`.
    pub fn set(&self, settings: &[(&'static str, &'static str)]) {
        let settings = settings.to_vec();
        self.run(move || {
            for (name, value) in settings {
                std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
            }
        });
    }

    /// The number of its thread, by which `ip` names this network.
    pub fn number(&self) -> &str {
        &self.thread
    }
}
