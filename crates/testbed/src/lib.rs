//! Networks for tests: namespaces, cables between them, pods that answer and clients that ask.
//!
//! Only tests use this crate. Whatever happens here happens in network namespaces that go with the
//! test; the machine's own network is never touched. A helper that fails panics, because that is
//! how tests fail.
//!
//! Needs the right to make network namespaces and the program `ip`. An ordinary user has that right
//! in a user namespace: there a test that nextest runs begins again (`rights.rs`). Where that is not
//! allowed either, tests are left out, which `cargo xtask test` counts; where `CI` is set they fail
//! then.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::missing_panics_doc,
    reason = "helpers of tests are tests, and a panic is how they fail"
)]

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use ferrule_core::model::Family;
use ferrule_kernel::ipvs::Ipvs;
use ferrule_kernel::netns;

mod ask;
mod exposed;
mod lab;
mod left_out;
mod place;
mod rights;
mod sctp;
mod serve;

pub use ask::{Answer, Ask, Protocol, connect_from};
pub use exposed::{EXTERNAL, KINDS, Kind, NODE_PORT, SIDES, Side, full, local};
/// Objects and clusters in few words.
pub use ferrule_core::testing as cluster;
pub use lab::{Lab, address, net};
pub use left_out::leave_out;
pub use place::Place;
pub use serve::start as start_pod;

/// Runs a test in a network of its own, whose loopback is up.
pub fn in_namespace(test: impl FnOnce() + Send) {
    let result = netns::isolated(|| {
        run("ip", &["link", "set", "lo", "up"]);
        test();
    });
    or_say_so(result);
}

/// Runs a test in a network of its own, with IPVS, whose loopback is up. Few kernels have IPVS;
/// `cargo xtask uml` brings one, and there it must be.
pub fn with_ipvs(test: impl FnOnce(&mut Ipvs) + Send) {
    in_namespace(|| {
        let Some(mut ipvs) = Ipvs::load().unwrap() else {
            leave_out("this kernel has no IPVS; `cargo xtask uml` brings one that has");
            return;
        };
        test(&mut ipvs);
    });
}

/// A network that could be made; `None` if there is no right to make one and that is no failure here.
pub(crate) fn or_say_so<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(made) => Some(made),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = rights::begin_again();
            left_out::leave_out(&format!(
                "no right to make a network namespace ({error}), and {why}; run as root"
            ));
            None
        }
        Err(error) => panic!("no network namespace: {error}"),
    }
}

/// The family as the kernel's crate calls it.
pub const fn kernel(family: Family) -> ferrule_kernel::Family {
    match family {
        Family::V4 => ferrule_kernel::Family::V4,
        Family::V6 => ferrule_kernel::Family::V6,
    }
}

/// The word of `ip` and `nft` for a family.
pub const fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Whether a variable of the environment is set.
pub fn variable(name: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "tests are steered so")]
    std::env::var(name).is_ok()
}

/// Runs a program in the namespace of the calling thread, and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    feed(program, arguments, "")
}

/// The same for a program that reads `input`.
pub fn feed(program: &str, arguments: &[&str], input: &str) -> String {
    let output = try_feed(program, arguments, input);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{input}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The same for a program that may fail.
pub fn try_feed(program: &str, arguments: &[&str], input: &str) -> Output {
    #[expect(clippy::disallowed_methods, reason = "tests may run programs")]
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} must be installed: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    // A program that does not read its input has its reasons.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Compares with a file, or renews that file when `UPDATE_EXPECT` is set.
pub fn expect(path: &std::path::Path, actual: &str) {
    if variable("UPDATE_EXPECT") {
        std::fs::write(path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs; UPDATE_EXPECT=1 renews it. It would be:\n{actual}",
        path.display()
    );
}
