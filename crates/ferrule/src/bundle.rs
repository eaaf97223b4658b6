//! `ferrule support-bundle`: everything that somebody needs who helps from afar, in one tar file.
//!
//! In: the running proxy by its admin socket, and the kernel of this machine. Out: a tar file. What cannot
//! be read says so in its place, so that a proxy that does not answer has its bundle too. Secrets are left
//! out of every file, whoever wrote them.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use ferrule_dataplane::error_chain;
use ferrule_dataplane::support::{self, Piece};
use jiff::Timestamp;

use crate::cli::BundleArgs;
use crate::clock::Time;
use crate::explain::answer::VERSION;
use crate::explain::ask::fetch;
use crate::print_error;
use crate::version;

mod redact;
mod tar;

use redact::redacted;
use tar::Tar;

/// What the proxy is asked, and the file that its answer goes into.
const ASKED: [(&str, &str); 7] = [
    ("config", "proxy/config.json"),
    ("flags", "proxy/flags.txt"),
    ("node", "proxy/node.json"),
    ("desired", "proxy/desired.json"),
    ("services", "proxy/services.json"),
    ("metrics", "proxy/metrics.txt"),
    ("log", "proxy/log.txt"),
];

/// Collects everything and writes it.
pub fn run(arguments: &BundleArgs) -> anyhow::Result<ExitCode> {
    let now = Time::now().wall;
    let name = format!(
        "ferrule-support-{}-{}",
        host_name(),
        now.strftime("%Y%m%dT%H%M%SZ")
    );
    let path = arguments.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{name}.tar")));
    // Before anything else takes its time.
    let mut target = Target::open(&path)?;
    let (files, unread) = collect(&arguments.socket, now);
    let mut tar = Tar::new(now);
    for (file, text) in &files {
        tar.add(&format!("{name}/{file}"), redacted(file, text).as_bytes());
    }
    let bytes = tar.finish();
    if let Err(error) = target.write(&bytes) {
        target.forget();
        return Err(error);
    }
    for line in &unread {
        print_error(&format!("warning: {line}"));
    }
    let (count, size) = (files.len(), bytes.len().div_ceil(1024));
    print_error(&format!(
        "{}: {count} files, {size} KiB. Tokens, keys, passwords and annotations are left out; names and \
         addresses of Services are not.",
        path.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// All files with their texts, and what could not be read.
fn collect(socket: &Path, now: Timestamp) -> (Vec<(String, String)>, Vec<String>) {
    let mut files = Vec::new();
    let mut unread = Vec::new();
    for (question, file) in ASKED {
        match fetch(socket, &format!("/{VERSION}/{question}"), "support-bundle") {
            Ok(body) => files.push((file.to_owned(), String::from_utf8_lossy(&body).into_owned())),
            Err(error) => unread.push(format!("{file} is missing: {}", error_chain(&error))),
        }
    }
    // Without a proxy every question has the same answer.
    if unread.len() == ASKED.len() {
        unread.truncate(1);
    }
    let mut pieces: Vec<Piece> = vec![support::abilities(), support::flows::summary()];
    pieces.extend(support::listings());
    for Piece { name, text } in pieces {
        files.push((format!("kernel/{name}"), text));
    }
    files.insert(0, ("README.txt".to_owned(), about(now, &unread)));
    (files, unread)
}

/// What is in the bundle.
fn about(now: Timestamp, unread: &[String]) -> String {
    let mut text = format!(
        "A support bundle of ferrule {}, in place of kube-proxy {}, made {now}.\n\n\
         proxy/   what the running proxy says: configuration and flags in force, recent syncs, issues in\n\
         \x20        objects, what every Service address should do, metrics, the last log lines\n\
         kernel/  what the kernel of this machine has and can do, whoever wrote it; tracked flows in numbers\n\n\
         Left out: tokens, keys, certificates, passwords, annotations, addresses of clients.\n",
        env!("CARGO_PKG_VERSION"),
        version::KUBERNETES,
    );
    for line in unread {
        _ = writeln!(text, "Not read: {line}");
    }
    text
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = name
        .trim()
        .chars()
        .filter(|c| is_plain(*c))
        .take(60)
        .collect();
    if name.is_empty() {
        "node".to_owned()
    } else {
        name
    }
}

/// Where the bundle goes.
enum Target {
    /// Standard output.
    Stdout,
    /// A file that was not there before.
    File(PathBuf, fs::File),
}

impl Target {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self::File(path.to_owned(), file))
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                Ok(out.flush()?)
            }
            Self::File(path, file) => file
                .write_all(bytes)
                .with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Half a bundle is none.
    fn forget(&self) {
        if let Self::File(path, _) = self {
            _ = fs::remove_file(path);
        }
    }
}
