//! A Unix socket at a path, for the user of this process alone.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why nobody can ask.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder is missing and cannot be made.
    #[error("cannot create the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Something else has the name.
    #[error("{} is not a socket; it is left alone", .0.display())]
    NotASocket(PathBuf),
    /// Somebody answers there.
    #[error("another process listens on {}; it is left alone", .0.display())]
    Taken(PathBuf),
    /// The kernel refused.
    #[error("cannot {what} {}", path.display())]
    Refused {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Listens at `path`. A socket on which nobody listens any more is replaced; everything else that
/// has the name stays.
pub fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        made.map_err(|source| SocketError::Folder {
            path: folder.to_owned(),
            source,
        })?;
    }
    check_free(path)?;
    let refused = |what| {
        move |source| SocketError::Refused {
            what,
            path: path.to_owned(),
            source,
        }
    };
    // Under another name first: nobody can connect before the mode is right.
    let mut own = path.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let own = Path::new(&own);
    match fs::remove_file(own) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(refused("replace")(source));
        }
        _ => {}
    }
    let listener = UnixListener::bind(own).map_err(refused("listen on"))?;
    let placed = fs::set_permissions(own, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(own, path));
    if let Err(source) = placed {
        // What cannot be removed is replaced by the next attempt.
        _ = fs::remove_file(own);
        return Err(refused("listen on")(source));
    }
    listener
        .set_nonblocking(true)
        .map_err(refused("listen on"))?;
    Ok(listener)
}

/// Whether the name is free, or of a socket that nobody serves.
fn check_free(path: &Path) -> Result<(), SocketError> {
    let refused = |source| SocketError::Refused {
        what: "inspect",
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Taken(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Its queue is full, so somebody listens.
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(SocketError::Taken(path.to_owned()))
        }
        Err(error) => Err(refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_serves_is_replaced_and_only_its_user_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/proxy.sock");
        drop(listen(&path).unwrap());
        let listener = listen(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(listener);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_socket_that_is_served_and_a_file_in_the_way_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.sock");
        let first = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(SocketError::Taken(_))));
        drop(first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(&path), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let below = path.join("proxy.sock");
        assert!(matches!(listen(&below), Err(SocketError::Folder { .. })));
    }
}
