//! Where in the manifests something stands.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A document in a file, and perhaps an item of the list it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) file: Arc<Path>,
    /// Counted from 1.
    pub(super) document: usize,
    /// In the file, counted from 1.
    pub(super) line: usize,
    /// Indices into `items`, outermost first.
    pub(super) items: Box<[usize]>,
}

impl Place {
    /// The beginning of a file.
    pub(super) fn start(file: &Path) -> Self {
        Self {
            file: file.into(),
            document: 1,
            line: 1,
            items: Box::default(),
        }
    }

    /// Within the document at this place, what these indices lead to.
    pub(super) fn at(&self, items: &[usize]) -> Self {
        Self {
            items: items.into(),
            ..self.clone()
        }
    }
}

/// `cluster.yaml: document 3, line 27`, for an item of a list followed by `, items[4]`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: document {}, line {}",
            self.file.display(),
            self.document,
            self.line
        )?;
        for (depth, index) in self.items.iter().enumerate() {
            let separator = if depth == 0 { ", " } else { "." };
            write!(f, "{separator}items[{index}]")?;
        }
        Ok(())
    }
}
