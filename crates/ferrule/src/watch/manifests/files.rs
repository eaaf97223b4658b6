//! Which files make up the manifests, and their text.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::ManifestError;

/// The file itself, or the manifests in a folder, sorted by name.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let unreadable = |source| ManifestError::Unreadable {
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let file = path.join(&name);
        if is_manifest(&name) && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn is_manifest(name: &OsStr) -> bool {
    // Kubernetes keeps the files of a mounted ConfigMap in `..data`, editors their own in `.swp`.
    let hidden = name.as_encoded_bytes().starts_with(b".");
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// The text of a file; `None` if it was deleted since it was listed.
pub(super) fn read(path: &Path) -> Result<Option<String>, ManifestError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if vanished(path, &error) => return Ok(None),
        Err(source) => {
            return Err(ManifestError::Unreadable {
                path: path.to_owned(),
                source,
            });
        }
    };
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|byte| *byte == b'\n').count();
        ManifestError::NotText {
            path: path.to_owned(),
            line,
        }
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(Some(text))
}

/// Deleted, as opposed to a link that leads nowhere: that is a mistake worth telling.
fn vanished(path: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err()
}
