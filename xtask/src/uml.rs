//! `cargo xtask uml`: the tests that need IPVS, in a User Mode Linux that has it.
//!
//! Most machines' kernels have no IPVS, and none can be loaded without touching the machine. User
//! Mode Linux is a kernel that runs as an ordinary program; Debian packages one. The test programs
//! are built here, one guest boots from the machine's own files, runs them all one after the other
//! and switches off. Nothing in it can reach the machine's network.
//!
//! Only what the guest writes down at its end counts: whatever keeps it from that is a failure.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use crate::test::Outcome;
use crate::tools::{self, Need};
use crate::{lab, run};

/// The target whose tests all need IPVS, in every package that has one.
const TARGET: &str = "ipvs";

/// What the guest and the tests in it need.
const NEEDS: [Need; 2] = [Need::Tests, Need::Ipvs];

/// The guest has one processor, but most tests wait most of the time.
const THREADS: u32 = 4;

/// Where stories run unless others are named.
const WORLDS: &str = "ferrule/ipvs,kube-proxy/ipvs";

/// How long a guest may run, and its memory in MiB: with tests, and with stories, which bring a whole
/// control plane.
const TESTS: (u32, u32) = (1200, 512);
const STORIES: (u32, u32) = (7200, 1536);

const INIT: &str = include_str!("uml/init.sh");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Runs only tests with one of these in their name.
    #[arg(value_name = "TEST")]
    filters: Vec<String>,
    /// Runs the tests of these targets instead: `packets` asks mode ipvs the table of packets.
    #[arg(long = "target", value_name = "TARGET", default_value = TARGET)]
    targets: Vec<String>,
    /// Runs this shell script instead of tests, with the machine's files read-only; its working
    /// directory is the folder for results, which is kept.
    #[arg(long, value_name = "FILE", conflicts_with = "filters")]
    script: Option<PathBuf>,
    /// Runs the lab in the guest instead of tests: stories with one of these in their name, or all.
    #[arg(long, conflicts_with = "script")]
    stories: bool,
    /// Runs the lab in the guest with these words, as `cargo xtask lab` does.
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["script", "stories", "filters"])]
    lab: Option<String>,
    /// The worlds that stories run in.
    #[arg(long, default_value = WORLDS)]
    worlds: String,
    /// Switches the guest off after so many seconds: 1200 with tests, 7200 with stories.
    #[arg(long)]
    seconds: Option<u32>,
    /// Memory of the guest in MiB: 512 with tests, 1536 with stories. It takes what it uses, not all of
    /// it.
    #[arg(long)]
    memory: Option<u32>,
    /// Boots the kernel of this folder, which `xtask/src/uml/kernel.sh` fills, instead of Debian's.
    #[arg(long, value_name = "FOLDER")]
    kernel: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filters: Vec::new(),
            targets: vec![TARGET.to_owned()],
            script: None,
            stories: false,
            lab: None,
            worlds: WORLDS.to_owned(),
            seconds: None,
            memory: None,
            kernel: None,
        }
    }
}

/// All tests for the guest, as a step of `cargo xtask test`.
pub(crate) fn step() -> Result<Outcome> {
    if let Err(error) = tools::ensure_for(&NEEDS) {
        ensure!(!run::is_ci(), "nothing may be skipped in CI: {error:#}");
        return Ok(Outcome::Skipped(format!("tests that need IPVS: {error:#}")));
    }
    uml(&Options::default()).map(|()| Outcome::Done)
}

/// Builds the tests, boots the guest and shows what came of them.
pub(crate) fn uml(options: &Options) -> Result<()> {
    tools::ensure_for(&NEEDS)?;
    let job = if let Some(script) = &options.script {
        fs::read_to_string(script)
            .with_context(|| format!("{} cannot be read", script.display()))?
    } else if let Some(words) = &options.lab {
        lab(words)?
    } else if options.stories {
        let names: Vec<_> = options.filters.iter().map(|word| quote(word)).collect();
        lab(&format!(
            "test --worlds={} {}",
            options.worlds,
            names.join(" ")
        ))?
    } else {
        tests(&options.targets, &options.filters)?
    };
    let guest = Guest::prepare(&job)?;
    let result = guest.boot(options);
    if result.is_ok() && options.script.is_none() {
        fs::remove_dir_all(&guest.folder).context("the guest's folder cannot be removed")?;
    } else {
        println!("   see {}", guest.folder.display());
    }
    result
}

/// Builds the test programs; returns a script that runs all of them and fails if one does.
fn tests(targets: &[String], filters: &[String]) -> Result<String> {
    let mut job = String::from(
        "# Nothing may be left out here: this is where it is there.\n\
         export CI=1 FERRULE_UML=1 RUST_BACKTRACE=1 TMPDIR=/tmp\n\
         failed=0\n",
    );
    let filters: Vec<_> = filters.iter().map(|word| quote(word)).collect();
    for program in build(targets)? {
        writeln!(
            job,
            "echo; echo {title}\n\
             {program} --test-threads={THREADS} {filters} || failed=1",
            title = quote(&format!("== {}", program.source)),
            program = quote(&program.path),
            filters = filters.join(" "),
        )?;
    }
    job.push_str(
        "grep -q '^test .* ok$' log || { echo 'no test passed'; failed=1; }\n\
         exit $failed\n",
    );
    Ok(job)
}

/// Builds the lab; returns a script that runs it with these words. Its folder is in memory, and what
/// it holds at the end comes with the other results.
fn lab(words: &str) -> Result<String> {
    lab::build()?;
    let root = run::root();
    let target = root.join("target");
    // The guest can mount over it, and not make it.
    fs::create_dir_all(target.join("lab"))?;
    let home = run::variable("HOME").context("HOME is not set")?;
    let (target, home) = (quote(&text(&target)?), quote(&text(Path::new(&home))?));
    Ok(format!(
        "export HOME={home} RUST_BACKTRACE=1\n\
         # The lab has a /run of its own.\n\
         mkdir /tmp/bin /tmp/lib && cp -P /run/bin/* /tmp/bin && cp -P /run/lib/modules /tmp/lib || exit\n\
         sed 's,-d /run,-d /tmp,' /run/bin/modprobe >/tmp/bin/modprobe && chmod +x /tmp/bin/modprobe || exit\n\
         export PATH=/tmp/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         # An API server without a name of its machine does not start.\n\
         hostname lab && modprobe -a ip_vs ip_vs_rr dummy bridge br_netfilter veth nf_conntrack_netlink || exit\n\
         mount -t tmpfs lab {target}/lab || exit\n\
         {target}/debug/ferrule-lab {words}\n\
         code=$?\n\
         cp -r {target}/lab lab\n\
         exit $code\n"
    ))
}

/// A test program.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: String,
    /// Its first file.
    source: String,
}

/// Builds the test programs. All of the workspace's packages take part, as they do when the other
/// tests are built, so that nothing is built twice.
fn build(targets: &[String]) -> Result<Vec<Program>> {
    let cargo = || {
        let targets = targets.iter().flat_map(|name| ["--test", name]);
        let all = ["test", "--workspace", "--locked", "--no-run"];
        all.into_iter().chain(targets)
    };
    run::cargo(cargo())?;
    // Once more, to be told where they are: they are built already.
    let told = run::capture("cargo", cargo().chain(["--message-format=json"]))?;
    let programs: Vec<_> = told.stdout.lines().filter_map(read_program).collect();
    ensure!(
        programs.len() >= targets.len(),
        "cargo does not say where all tests are: {}",
        told.stderr
    );
    Ok(programs)
}

/// The test program in a message of cargo, if it is about one that was built. The program that tests
/// run is built with them, and is none.
fn read_program(message: &str) -> Option<Program> {
    let (_, profile) = message.split_once("\"profile\":{")?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let text = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        let (text, _) = rest.split_once('"')?;
        Some(text.to_owned())
    };
    Some(Program {
        path: text("executable")?,
        source: text("src_path")?,
    })
}

/// One word of a shell script.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A guest and the folder that it writes to.
struct Guest {
    /// Two guests at a time have two folders, and are called after them.
    name: String,
    folder: PathBuf,
}

impl Guest {
    fn prepare(job: &str) -> Result<Self> {
        static GUESTS: AtomicUsize = AtomicUsize::new(0);
        let number = GUESTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferrule-{}-{number}", std::process::id());
        let folder = run::root().join("target").join("uml").join(&name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("init.sh"), INIT)?;
        fs::write(folder.join("job.sh"), Self::surroundings()? + job)?;
        Ok(Self { name, folder })
    }

    /// Makes the repository visible though it may lie where the guest has a `/tmp` of its own.
    fn surroundings() -> Result<String> {
        let root = text(&run::root())?;
        // Only who renews captured messages writes to it.
        let renew = run::variable("UPDATE_EXPECT").is_some();
        let (access, export) = if renew {
            ("rw", "export UPDATE_EXPECT=1\n")
        } else {
            ("ro", "")
        };
        let root = quote(&root);
        Ok(format!(
            "mkdir -p {root} 2>/dev/null\n\
             mount -t hostfs -o {access} none {root} -o {root} || exit\n\
             cd /run/out || exit\n{export}"
        ))
    }

    /// Boots, waits for the end, and reads what the guest wrote down.
    fn boot(&self, options: &Options) -> Result<()> {
        let folder = text(&self.folder)?;
        let (seconds, memory) = if options.stories || options.lab.is_some() {
            STORIES
        } else {
            TESTS
        };
        let limit = options.seconds.unwrap_or(seconds).to_string();
        let memory = options.memory.unwrap_or(memory);
        let (kernel, modules) = match &options.kernel {
            None => ("linux.uml".to_owned(), "/usr/lib/uml/modules".to_owned()),
            Some(folder) => {
                let folder = folder.canonicalize().context("no folder with a kernel")?;
                let inside = |name| text(&folder.join(name));
                (inside("linux")?, inside("modules")?)
            }
        };
        let words = [
            // The guest is ended by a signal that it obeys, or else by one that it cannot ignore.
            "--kill-after=10".to_owned(),
            limit.clone(),
            kernel,
            // Kernels that do not know this word give it to init as a variable.
            "seccomp=auto".to_owned(),
            format!("mem={memory}M"),
            format!("MODULES={modules}"),
            format!("umid={}", self.name),
            format!("uml_dir={folder}/"),
            "rootfstype=hostfs".to_owned(),
            "rootflags=/".to_owned(),
            "ro".to_owned(),
            "con=null".to_owned(),
            "con0=fd:0,fd:1".to_owned(),
            "quiet".to_owned(),
            "init=/bin/sh".to_owned(),
            format!("OUT={folder}"),
            "--".to_owned(),
            format!("{folder}/init.sh"),
        ];
        let words = words.iter().map(String::as_str);
        let log = self.folder.join("log");
        let status = run::quietly("timeout", words, &self.folder.join("console"), &log)?;
        let verdict = fs::read_to_string(self.folder.join("verdict")).unwrap_or_default();
        match verdict.trim() {
            "0" => Ok(()),
            "" if status.code() == Some(124) => bail!("the guest took longer than {limit} s"),
            "" => bail!(
                "the guest ended without a word ({status}); its console says:\n{}",
                fs::read_to_string(self.folder.join("console")).unwrap_or_default()
            ),
            code => bail!("tests in User Mode Linux failed (exit code {code})"),
        }
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().context("the repository's path is not text")?;
    // The kernel's command line has no way to quote.
    ensure!(
        !text.contains(char::is_whitespace),
        "the repository's path contains a space: {text}"
    );
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_read_from_what_cargo_says() {
        let message = r#"{"target":{"src_path":"/a/main.rs"},"profile":{"test":true},"executable":"/a/deps/ipvs-1"}"#;
        let program = Program {
            path: "/a/deps/ipvs-1".to_owned(),
            source: "/a/main.rs".to_owned(),
        };
        assert_eq!(read_program(message), Some(program));
        let library =
            r#"{"target":{"src_path":"/a/lib.rs"},"profile":{"test":true},"executable":null}"#;
        assert_eq!(read_program(library), None);
        let tested = r#"{"target":{"src_path":"/a/main.rs","test":true},"profile":{"test":false},"executable":"/a/ferrule"}"#;
        assert_eq!(read_program(tested), None);
    }

    #[test]
    fn ipvs_079_guests_have_names_and_folders_of_their_own() {
        let guests = ["one", "two"].map(|job| Guest::prepare(job).unwrap());
        assert_ne!(guests[0].name, guests[1].name);
        for (guest, job) in guests.iter().zip(["one", "two"]) {
            let text = fs::read_to_string(guest.folder.join("job.sh")).unwrap();
            assert!(text.ends_with(job), "{text}");
        }
        for guest in guests {
            fs::remove_dir_all(guest.folder).unwrap();
        }
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_path_that_a_kernel_cannot_be_given_is_refused() {
        assert!(text(Path::new("/srv/my work")).is_err());
    }
}
