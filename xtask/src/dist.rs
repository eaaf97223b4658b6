//! `cargo xtask dist`: everything a release consists of, in `target/packages`.
//!
//! The program is linked statically, so it runs on any Linux of its architecture. All files are a
//! function of the commit: times are the commit's, paths of the building machine are left out,
//! and archives are sorted. `--check` proves it by building twice in two places.

mod bill;
pub(crate) mod debian;
mod image;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{run, tools};

/// Another one takes a standard library and a linker for it: `rustup target add`, and `objcopy` for it.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The same in the words of images.
const ARCHITECTURE: &str = "amd64";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Builds once more from a copy in another folder, and compares every file.
    #[arg(long)]
    check: bool,
    /// Without the second image, which has the iptables programs from Debian packages.
    #[arg(long)]
    no_iptables_image: bool,
}

/// Builds the release.
pub(crate) fn dist(options: &Options) -> Result<()> {
    tools::ensure_programs(&["cc", "openssl"])?;
    let root = run::root();
    let release = Release::of(&root)?;
    // Not `target/dist`: cargo keeps what it builds for the profile `dist` there.
    let out = root.join("target/packages");
    release.build(&root, &out, options)?;
    if options.check {
        check(&release, &root, &out, options)?;
    }
    summary(&out)
}

/// Builds again where every path is another one.
fn check(release: &Release, root: &Path, out: &Path, options: &Options) -> Result<()> {
    let elsewhere = root.join("target/packages-again");
    remove(&elsewhere)?;
    fs::create_dir_all(&elsewhere)?;
    let copy = elsewhere.join("a-folder-with-another-name");
    let (from, to) = (text(root)?, text(&copy)?);
    run::program("git", ["clone", "--quiet", from, to], &[])?;
    let again = elsewhere.join("out");
    release.build(&copy, &again, options)?;
    let (first, second) = (sums(out)?, sums(&again)?);
    ensure!(
        first == second,
        "two builds differ:\n{first}\nand in another folder:\n{second}"
    );
    println!("   two builds in two folders are the same, byte for byte");
    remove(&elsewhere)
}

/// What is released, and when it was made.
struct Release {
    version: String,
    commit: String,
    /// Seconds; every time in every file.
    time: String,
}

impl Release {
    fn of(root: &Path) -> Result<Self> {
        let root = text(root)?;
        let git = |arguments: &[&'static str]| {
            let first = ["-C", root].into_iter();
            let output = run::capture("git", first.chain(arguments.iter().copied()))?;
            ensure!(output.success, "git {arguments:?}: {}", output.stderr);
            anyhow::Ok(output.stdout.trim().to_owned())
        };
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: git(&["rev-parse", "HEAD"])?,
            time: git(&["log", "-1", "--format=%ct"])?,
        })
    }

    /// Builds everything from the tree in `root` into `out`.
    fn build(&self, root: &Path, out: &Path, options: &Options) -> Result<()> {
        remove(out)?;
        let name = format!("ferrule-{}-{TARGET}", self.version);
        let packed = out.join(&name);
        fs::create_dir_all(&packed)?;

        let program = packed.join("ferrule");
        self.compile(root, &program, &out.join(format!("{name}.debug")))?;
        manual(root, &packed)?;
        for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
            fs::copy(root.join(file), packed.join(file)).with_context(|| file.to_owned())?;
        }
        let bill = bill::Bill::read(root, TARGET)?;
        fs::write(packed.join("THIRD-PARTY-LICENSES.txt"), bill.licences()?)?;
        fs::write(out.join(format!("{name}.cdx.json")), bill.cyclonedx(self)?)?;

        image::build(self, &program, &out.join("ferrule-image.tar"), &[])?;
        if !options.no_iptables_image {
            let packages = debian::unpack(&out.join("packages"), debian::IPTABLES)?;
            image::build(
                self,
                &program,
                &out.join("ferrule-iptables-image.tar"),
                &[packages],
            )?;
            remove(&out.join("packages"))?;
        }
        self.archive(out, &name, &out.join(format!("{name}.tar")))?;
        run::program(
            "gzip",
            ["-n9f", text(&out.join(format!("{name}.tar")))?],
            &[],
        )?;
        remove(&packed)?;
        fs::write(out.join("SHA256SUMS"), sums(out)?)?;
        Ok(())
    }

    /// The program without symbols, and these beside it.
    fn compile(&self, root: &Path, program: &Path, debug: &Path) -> Result<()> {
        let home = cargo_home()?;
        let (root, home) = (text(root)?, text(&home)?);
        let rust = format!(
            "-Ctarget-feature=+crt-static --remap-path-prefix={root}=/ferrule \
             --remap-path-prefix={home}=/cargo"
        );
        let c = format!("-ffile-prefix-map={root}=/ferrule -ffile-prefix-map={home}=/cargo");
        let manifest = format!("{root}/Cargo.toml");
        let target = format!("{root}/target");
        // With a target named, flags do not reach what runs while it is built.
        let cargo = [
            "build",
            "--locked",
            "--profile",
            "dist",
            "--target",
            TARGET,
            "-p",
            "ferrule",
            "--manifest-path",
            &manifest,
            "--target-dir",
            &target,
        ];
        let environment = [
            ("RUSTFLAGS", rust.as_str()),
            ("CFLAGS", c.as_str()),
            ("SOURCE_DATE_EPOCH", self.time.as_str()),
            ("FERRULE_COMMIT", self.commit.as_str()),
        ];
        run::program("cargo", cargo, &environment)?;
        let built = format!("{target}/{TARGET}/dist/ferrule");
        let (program, debug) = (text(program)?, text(debug)?);
        run::program("objcopy", ["--only-keep-debug", built.as_str(), debug], &[])?;
        run::program("objcopy", ["--strip-all", built.as_str(), program], &[])
    }

    /// An archive of a file or folder, the same for the same content.
    fn archive(&self, folder: &Path, what: &str, to: &Path) -> Result<()> {
        let time = format!("--mtime=@{}", self.time);
        let tar = [
            "--sort=name",
            "--format=ustar",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            &time,
            "--mode=u=rwX,go=rX",
            "-C",
            text(folder)?,
            "-cf",
            text(to)?,
            what,
        ];
        run::program("tar", tar, &[])
    }
}

/// Man pages and completions, from a build of the same sources that can write them.
fn manual(root: &Path, folder: &Path) -> Result<()> {
    let manifest = root.join("Cargo.toml");
    let target = root.join("target");
    let cargo = [
        "run",
        "--quiet",
        "--locked",
        "-p",
        "ferrule",
        "--features",
        "manual",
        "--manifest-path",
        text(&manifest)?,
        "--target-dir",
        text(&target)?,
        "--",
        "manual",
        text(folder)?,
    ];
    run::cargo(cargo)
}

/// The checksums of all files in a folder, by name, as `sha256sum -c` reads them.
fn sums(folder: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut sums = String::new();
    for name in names {
        let sum = sha256(&folder.join(&name))?;
        writeln!(sums, "{sum}  {name}")?;
    }
    Ok(sums)
}

fn sha256(file: &Path) -> Result<String> {
    let output = run::capture("sha256sum", [text(file)?])?;
    ensure!(output.success, "sha256sum: {}", output.stderr);
    let sum = output.stdout.split_whitespace().next();
    Ok(sum.context("sha256sum prints a sum")?.to_owned())
}

fn summary(out: &Path) -> Result<()> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(out)? {
        entries.push(entry?.path());
    }
    entries.sort_unstable();
    for path in entries {
        let kibibytes = fs::metadata(&path)?.len().div_ceil(1024);
        println!("   {kibibytes:6} KiB  {}", path.display());
    }
    Ok(())
}

fn cargo_home() -> Result<PathBuf> {
    let of = |name, below: &str| Some(PathBuf::from(std::env::var_os(name)?).join(below));
    of("CARGO_HOME", "")
        .or_else(|| of("HOME", ".cargo"))
        .context("neither CARGO_HOME nor HOME is set")
}

fn remove(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(entry) if entry.is_dir() => fs::remove_dir_all(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    Ok(())
}

/// A path as an argument.
fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .context("the path of the repository is not text")
}
