//! Images in the layout of OCI, unpacked as a runtime would.
//!
//! In: an archive of `cargo xtask dist`. Out: a folder with the files of all layers, and how the
//! program in it is started.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::os;

/// An image whose files are there.
pub struct Image {
    pub root: PathBuf,
    pub entrypoint: Vec<String>,
    pub environment: Vec<String>,
}

impl Image {
    /// Unpacks an archive below a folder.
    pub fn unpack(archive: &Path, folder: &Path) -> Result<Self> {
        let (layout, root) = (folder.join("layout"), folder.join("root"));
        extract(archive, &layout)
            .with_context(|| format!("{}: `cargo xtask dist` makes it", archive.display()))?;
        let index = json(&layout.join("index.json"))?;
        let blob = |described: &Value| -> Result<PathBuf> {
            let digest = described["digest"]
                .as_str()
                .context("a blob without digest")?;
            Ok(layout.join("blobs").join(digest.replace(':', "/")))
        };
        let manifest = json(&blob(&index["manifests"][0])?)?;
        for layer in manifest["layers"]
            .as_array()
            .context("an image without layers")?
        {
            extract(&blob(layer)?, &root)?;
        }
        let config = json(&blob(&manifest["config"])?)?;
        let words = |name: &str| -> Vec<String> {
            let words = config["config"][name].as_array().into_iter().flatten();
            words
                .filter_map(|word| Some(word.as_str()?.to_owned()))
                .collect()
        };
        let image = Self {
            root,
            entrypoint: words("Entrypoint"),
            environment: words("Env"),
        };
        std::fs::remove_dir_all(layout)?;
        Ok(image)
    }
}

fn extract(archive: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let mut tar = os::command("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(to);
    os::output(&mut tar).map(|_| ())
}

fn json(file: &Path) -> Result<Value> {
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| file.display().to_string())
}
