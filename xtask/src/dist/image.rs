//! An OCI image in one archive, made without any program for containers.
//!
//! In: the program and folders to put beside it. Out: a tar file that `skopeo`, `ctr images import`
//! and `podman load` read. Nothing is compressed: registries and runtimes do that themselves.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{ARCHITECTURE, Release, debian, remove, run, sha256, text};

/// Where everybody looks for trusted certificates.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Writes the image. Every folder becomes a layer below the program's.
pub(super) fn build(release: &Release, program: &Path, to: &Path, below: &[PathBuf]) -> Result<()> {
    let work = to.with_extension("work");
    remove(&work)?;
    let layout = work.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let own = work.join("own");
    root(program, &own)?;

    let mut layers = Vec::new();
    for folder in below.iter().chain([&own]) {
        let layer = work.join("layer.tar");
        release.archive(folder, ".", &layer)?;
        layers.push(store(
            &blobs,
            &layer,
            "application/vnd.oci.image.layer.v1.tar",
        )?);
    }
    let config = write(&work, &config(release, &layers)?)?;
    let config = store(&blobs, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers,
    });
    let mut manifest = store(
        &blobs,
        &write(&work, &manifest)?,
        "application/vnd.oci.image.manifest.v1+json",
    )?;
    let name = to
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or("ferrule");
    let name = name.trim_end_matches("-image");
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": format!("{name}:{}", release.version),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    fs::write(layout.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(
        layout.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    release.archive(&layout, ".", to)?;
    remove(&work)
}

/// The file system of the program's own layer: itself, under both names, and trusted certificates.
fn root(program: &Path, root: &Path) -> Result<()> {
    let bin = root.join("usr/local/bin");
    fs::create_dir_all(&bin)?;
    fs::copy(program, bin.join("ferrule")).context("the program")?;
    // Where the manifests of kubeadm and others expect it.
    symlink("ferrule", bin.join("kube-proxy"))?;
    let bundle = root.join(CERTIFICATES);
    fs::create_dir_all(bundle.parent().expect("it lies in a folder"))?;
    fs::write(
        &bundle,
        debian::certificates(&root.with_extension("packages"))?,
    )?;
    // Where the node's lock, configuration and socket are mounted.
    for folder in ["run", "etc/ferrule", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    Ok(())
}

fn config(release: &Release, layers: &[Value]) -> Result<Value> {
    let seconds = format!("--date=@{}", release.time);
    let date = run::capture("date", ["--utc", &seconds, "+%Y-%m-%dT%H:%M:%SZ"])?;
    let created = date.stdout.trim();
    let labels = json!({
        "org.opencontainers.image.title": "ferrule",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
    });
    let digests: Vec<_> = layers.iter().map(|layer| &layer["digest"]).collect();
    Ok(json!({
        "created": created,
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/local/bin/ferrule"],
            "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": layers.iter().map(|_| json!({"created": created})).collect::<Vec<_>>(),
    }))
}

fn write(work: &Path, value: &Value) -> Result<PathBuf> {
    let file = work.join("blob.json");
    fs::write(&file, serde_json::to_vec(value)?)?;
    Ok(file)
}

/// Moves a file among the blobs and describes it.
fn store(blobs: &Path, file: &Path, kind: &str) -> Result<Value> {
    let (sum, size) = (sha256(file)?, fs::metadata(file)?.len());
    fs::rename(file, blobs.join(&sum))
        .with_context(|| text(file).unwrap_or_default().to_owned())?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": size}))
}
