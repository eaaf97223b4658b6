//! A network of one's own, for tests and measurements.
//!
//! Whatever the closure does to rules, addresses and settings of the network happens in a new
//! namespace and goes with it. Programs that it starts live there too.

use std::io;
use std::path::{Path, PathBuf};

use crate::socket::unshare_network;

/// Runs `f` in a thread that has a new, empty network namespace.
///
/// # Errors
/// `PermissionDenied` without the right to make one. Any other error means that the thread is not
/// certain to be elsewhere; `f` did not run.
///
/// # Panics
/// When `f` does.
pub fn isolated<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare_network()?;
            assert_elsewhere()?;
            Ok(f())
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fails unless the calling thread's network is neither that of its process nor that of the first
/// process. A mistake here would change the rules of the machine itself.
fn assert_elsewhere() -> io::Result<()> {
    let here = std::fs::read_link("/proc/thread-self/ns/net")?;
    let process = std::fs::read_link("/proc/self/ns/net")?;
    // Without the right to look at other processes this cannot be read; the process's own
    // namespace, which was there before us, is then the only one to compare with.
    let first = match std::fs::read_link(Path::new("/proc/1/ns/net")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => PathBuf::new(),
        result => result?,
    };
    if here == process || here == first {
        return Err(io::Error::other("still in the host network namespace"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_the_machine_is_told_from_ones_own() {
        assert!(assert_elsewhere().is_err());
    }
}
