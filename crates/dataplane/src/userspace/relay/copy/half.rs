//! One direction of a connection.
//!
//! Short exchanges are copied through a buffer of the thread; streams are moved by `splice` through
//! a pipe. What could not be sent on yet is held until there is room.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use ferrule_kernel::inet::{self, pipe::Pipe};
use tokio::io::unix::AsyncFd;

use super::super::pipes;

/// The thread's buffer.
const SCRATCH: usize = 32 * 1024;

/// A direction that has carried less than this is copied.
const SHORT: u64 = 64 * 1024;

/// Buffers that must be full, one after the other, before a direction counts as a stream.
const FULL: u8 = 2;

/// A stream that wakes up for less than this, this often, is none.
const TRICKLE: u64 = 16 * 1024;
const TRICKLES: u8 = 4;

/// Turns and bytes before other tasks of the thread have theirs.
const TURNS: usize = 16;
const AT_ONCE: u64 = 1024 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH]);
}

/// Which side failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The one that bytes come from.
    Read,
    /// The one that they go to.
    Write,
}

/// What was read and not yet sent on.
#[derive(Debug)]
enum Held {
    Nothing,
    Bytes { bytes: Box<[u8]>, sent: usize },
    Piped { pipe: Pipe, len: usize },
}

/// How bytes are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Copied, whatever comes.
    AlwaysCopy,
    /// Copied until it turns out to be a stream.
    Copy,
    /// Moved through a pipe.
    Splice,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Half {
    held: Held,
    moved: u64,
    /// Where it stood when it last woke up.
    woken_at: u64,
    way: Way,
    /// Full buffers, or trickles, in a row.
    row: u8,
    /// There may be bytes that no event has announced.
    fresh: bool,
    ended: bool,
}

impl Half {
    pub(super) fn new(may_splice: bool) -> Self {
        Self {
            held: Held::Nothing,
            moved: 0,
            woken_at: 0,
            way: if may_splice {
                Way::Copy
            } else {
                Way::AlwaysCopy
            },
            row: 0,
            fresh: false,
            ended: false,
        }
    }

    /// Sends the rest of these bytes before anything else.
    pub(super) fn begin_with(&mut self, bytes: Box<[u8]>, sent: usize) {
        if sent < bytes.len() {
            self.held = Held::Bytes { bytes, sent };
        }
    }

    /// Whether there may be bytes that no event will announce soon.
    pub(super) fn look_again(&mut self, fresh: bool) {
        self.fresh = fresh;
    }

    /// Bytes read so far.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Carries what there is. Ready once, when the direction has ended. If it is the `last` one, both
    /// sockets are about to be closed, and that says it all.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &AsyncFd<OwnedFd>,
        into: &AsyncFd<OwnedFd>,
        last: bool,
    ) -> Poll<Result<(), Broken>> {
        if self.ended {
            return Poll::Pending;
        }
        let begun_at = self.moved;
        for _ in 0..TURNS {
            if self.moved - begun_at >= AT_ONCE {
                break;
            }
            let turn = match self.poll_turn(cx, from, into) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(turn) => turn,
            };
            match turn {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    if last {
                        return Poll::Ready(Ok(()));
                    }
                    let shut = inet::shut_down_sending(into);
                    return Poll::Ready(shut.map_err(|_| Broken::Write));
                }
                Err(broken) => {
                    self.ended = true;
                    self.held = Held::Nothing;
                    return Poll::Ready(Err(broken));
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what is held and reads more. `false` at the end.
    fn poll_turn(
        &mut self,
        cx: &mut Context<'_>,
        from: &AsyncFd<OwnedFd>,
        into: &AsyncFd<OwnedFd>,
    ) -> Poll<Result<bool, Broken>> {
        if let Err(broken) = ready!(self.poll_flush(cx, into)) {
            return Poll::Ready(Err(broken));
        }
        if std::mem::take(&mut self.fresh) {
            match self.copy(from, into) {
                Ok(len) => return Poll::Ready(Ok(len > 0)),
                Err(Step::Broken(broken)) => return Poll::Ready(Err(broken)),
                Err(Step::Empty | Step::Interrupted) => {}
            }
        }
        loop {
            let Poll::Ready(ready) = from.poll_read_ready(cx) else {
                self.falls_asleep();
                return Poll::Pending;
            };
            let Ok(mut ready) = ready else {
                return Poll::Ready(Err(Broken::Read));
            };
            let splices = self.way == Way::Splice;
            let step = if splices {
                self.splice(from, into)
            } else {
                self.copy(from, into)
            };
            match step {
                Err(Step::Empty) => ready.clear_ready(),
                Err(Step::Interrupted) => {}
                Ok(len) => {
                    // What arrives later is announced anew; asking again would find nothing.
                    if !splices && len > 0 && len < SCRATCH {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(len > 0));
                }
                Err(Step::Broken(broken)) => return Poll::Ready(Err(broken)),
            }
        }
    }

    /// Sends what is held.
    fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        into: &AsyncFd<OwnedFd>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            let step = match &mut self.held {
                Held::Nothing => return Poll::Ready(Ok(())),
                Held::Bytes { bytes, sent } => {
                    inet::send(into, bytes.get(*sent..).unwrap_or(&[])).map(|n| *sent += n)
                }
                Held::Piped { pipe, len } => {
                    pipe.drain(into, *len).map(|n| *len = len.saturating_sub(n))
                }
            };
            match step {
                Ok(()) => self.release(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let Ok(mut ready) = ready!(into.poll_write_ready(cx)) else {
                        return Poll::Ready(Err(Broken::Write));
                    };
                    ready.clear_ready();
                    // Known now to be full; the next round waits for an event.
                    let Poll::Ready(ready) = into.poll_write_ready(cx) else {
                        return Poll::Pending;
                    };
                    if ready.is_err() {
                        return Poll::Ready(Err(Broken::Write));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Poll::Ready(Err(Broken::Write)),
            }
        }
    }

    /// Lets go of what has been sent.
    fn release(&mut self) {
        let done = match &self.held {
            Held::Nothing => false,
            Held::Bytes { bytes, sent } => *sent >= bytes.len(),
            Held::Piped { len, .. } => *len == 0,
        };
        if done && let Held::Piped { pipe, .. } = std::mem::replace(&mut self.held, Held::Nothing) {
            pipes::give_back(pipe);
        }
    }

    /// Reads into the thread's buffer and sends that; holds what there is no room for.
    fn copy(&mut self, from: &AsyncFd<OwnedFd>, into: &AsyncFd<OwnedFd>) -> Result<usize, Step> {
        BUFFER.with_borrow_mut(|buffer| {
            let len = match inet::receive(from, buffer) {
                Ok(len) => len,
                Err(error) => return Err(Step::of_read(&error)),
            };
            let bytes = buffer.get(..len).unwrap_or(&[]);
            if bytes.is_empty() {
                return Ok(0);
            }
            self.read(len);
            let sent = match inet::send(into, bytes) {
                Ok(sent) => sent,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                    _ => return Err(Step::Broken(Broken::Write)),
                },
            };
            if let Some(rest) = bytes.get(sent..)
                && !rest.is_empty()
            {
                self.held = Held::Bytes {
                    bytes: rest.into(),
                    sent: 0,
                };
            }
            Ok(len)
        })
    }

    /// Moves bytes through a pipe; those there is no room for stay in it.
    fn splice(&mut self, from: &AsyncFd<OwnedFd>, into: &AsyncFd<OwnedFd>) -> Result<usize, Step> {
        let Some(pipe) = pipes::take() else {
            self.way = Way::Copy;
            return self.copy(from, into);
        };
        let len = match pipe.fill(from, usize::MAX >> 1) {
            Ok(len) => len,
            Err(error) => {
                pipes::give_back(pipe);
                if error.kind() == io::ErrorKind::InvalidInput {
                    // This kernel cannot do it with this socket.
                    self.way = Way::AlwaysCopy;
                    return self.copy(from, into);
                }
                return Err(Step::of_read(&error));
            }
        };
        self.moved += u64::try_from(len).unwrap_or(0);
        match pipe.drain(into, len) {
            Ok(sent) if sent >= len => pipes::give_back(pipe),
            Ok(sent) => {
                self.held = Held::Piped {
                    pipe,
                    len: len - sent,
                };
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {
                    self.held = Held::Piped { pipe, len };
                }
                _ => return Err(Step::Broken(Broken::Write)),
            },
        }
        Ok(len)
    }

    /// Counts bytes that were read, and notices a stream.
    fn read(&mut self, len: usize) {
        self.moved += u64::try_from(len).unwrap_or(0);
        self.row = if len == SCRATCH {
            self.row.saturating_add(1)
        } else {
            0
        };
        if self.way == Way::Copy && self.row >= FULL && self.moved >= SHORT {
            self.way = Way::Splice;
            self.row = 0;
        }
    }

    /// Nothing more is there; notices that a stream has become a trickle.
    fn falls_asleep(&mut self) {
        if self.way == Way::Splice {
            let trickled = self.moved - self.woken_at < TRICKLE;
            self.row = if trickled {
                self.row.saturating_add(1)
            } else {
                0
            };
            if self.row >= TRICKLES {
                self.way = Way::Copy;
                self.row = 0;
            }
        }
        self.woken_at = self.moved;
    }
}

/// Why a step did not move anything.
#[derive(Clone, Copy, Debug)]
enum Step {
    Empty,
    Interrupted,
    Broken(Broken),
}

impl Step {
    fn of_read(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::Empty,
            io::ErrorKind::Interrupted => Self::Interrupted,
            _ => Self::Broken(Broken::Read),
        }
    }
}
