//! A stream whose peer must take what is written to it in time.
//!
//! A peer that never reads would otherwise hold its connection, and the answer waiting for it, for
//! as long as it likes: TCP itself sets no limit.

use std::future::Future as _;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream on which writing fails when what was written is not taken within a time.
#[derive(Debug)]
pub struct TimedWrites<S: AsFd> {
    stream: S,
    limit: Duration,
    /// Runs from when the peer first did not take all, until everything written is on its way: one
    /// who takes a byte now and then gains no time.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsFd> TimedWrites<S> {
    /// Limits writing to `stream`.
    pub const fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            deadline: None,
        }
    }

    fn check<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() && self.deadline.is_none() {
            self.deadline = Some(Box::pin(sleep(self.limit)));
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl<S: AsyncRead + AsFd + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.check(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when nothing is left to be written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.deadline = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsFd> Drop for TimedWrites<S> {
    fn drop(&mut self) {
        if self.deadline.is_some() {
            // The kernel would keep, and offer, for minutes what this peer does not take. If this
            // fails it does.
            let _kept = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}
