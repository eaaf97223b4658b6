//! Runs one program to its end.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::XtError;

/// A program that needs longer hangs.
const LIMIT: Duration = Duration::from_mins(10);

/// The exit status when the lock could not be taken, among other things.
const RESOURCE_PROBLEM: i32 = 4;

/// How the message names it. Without the right to change rules the exit status is the same.
const LOCK: &str = "xtables lock";

/// How messages end without the right to change rules, in both flavours.
const NOT_PERMITTED: &str = "Permission denied (you must be root)";

/// What iptables needs, by bit: the legacy flavour opens a raw socket.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];

/// How messages about the first contact with the kernel begin, in both flavours.
const BEGINNINGS: [&str; 4] = [
    "can't initialize ",
    "Cannot initialize: ",
    "Failed to initialize nft: ",
    "Could not fetch rule set generation id: ",
];

/// How they end where the kernel has no such tables.
const ABSENCES: [&str; 4] = [
    "Table does not exist",
    "Protocol not supported",
    "Address family not supported",
    "Invalid argument",
];

/// Runs a program in the network namespace of the calling thread and returns what it printed.
pub fn run(name: &str, path: &OsStr, arguments: &[&str], input: &str) -> Result<String, XtError> {
    let unusable = |source| XtError::Unusable {
        program: name.to_owned(),
        source,
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the place where programs are run"
    )]
    let child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(unusable)?;
    let (status, printed, errors) = converse(child, input).map_err(unusable)?;
    if status.success() {
        return Ok(printed);
    }
    Err(failure(name, status, &errors))
}

/// Gives the child its input and takes what it prints, all at once, so that neither waits for the
/// other.
fn converse(mut child: Child, input: &str) -> io::Result<(ExitStatus, String, String)> {
    let mut stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(pipe) = &mut stdin {
                // A child that does not read to the end says why by other means.
                let _ = pipe.write_all(input.as_bytes());
            }
        });
        let errors = scope.spawn(move || read(stderr));
        let (sender, printed) = mpsc::channel();
        scope.spawn(move || sender.send(read(stdout)));
        let printed = printed.recv_timeout(LIMIT);
        if printed.is_err() {
            child.kill()?;
        }
        let status = child.wait()?;
        let printed = printed.map_err(|_| io::ErrorKind::TimedOut)??;
        let errors = errors.join().unwrap_or_else(|_| Ok(String::new()))?;
        Ok((status, printed, errors))
    })
}

fn read(pipe: Option<impl Read>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn failure(name: &str, status: ExitStatus, errors: &str) -> XtError {
    let program = name.to_owned();
    let message = match errors.trim() {
        "" => status.to_string(),
        text => text.replace('\n', "; "),
    };
    let is_lock = status.code() == Some(RESOURCE_PROBLEM) && errors.contains(LOCK);
    let says = |words: &[&str]| words.iter().any(|word| errors.contains(word));
    match faulty_line(errors) {
        None if is_lock => XtError::Locked { program, message },
        None if says(&BEGINNINGS) && says(&ABSENCES) => XtError::Missing { program, message },
        None if errors.contains(NOT_PERMITTED) => {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
            let message = format!("needs {}: {message}", needs(&status));
            XtError::NotPermitted { program, message }
        }
        line => XtError::Refused {
            program,
            line,
            message,
        },
    }
}

/// The capabilities that a program started here would lack, by the status of this thread. If it has
/// all of them, they are not over this network.
fn needs(status: &str) -> String {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let bits = bits.unwrap_or_default();
    let lacks = CAPABILITIES
        .iter()
        .filter(|(bit, _)| bits & (1 << bit) == 0);
    let names: Vec<_> = lacks.map(|(_, name)| *name).collect();
    if names.is_empty() {
        return "CAP_NET_ADMIN over this network".to_owned();
    }
    names.join(" and ")
}

/// The line of the input that a message names: `line 3 failed`, `line 3: …`, or
/// `Error occurred at line: 3`.
fn faulty_line(errors: &str) -> Option<usize> {
    errors.match_indices("line").find_map(|(at, word)| {
        let rest = &errors[at + word.len()..];
        let rest = rest.strip_prefix(':').unwrap_or(rest).trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let needs = |bits: &str| needs(&format!("Name:\tx\nCapEff:\t{bits}\nCapBnd:\t0\n"));
        assert_eq!(needs("0000000000000000"), "CAP_NET_ADMIN and CAP_NET_RAW");
        assert_eq!(needs("0000000000001000"), "CAP_NET_RAW");
        assert_eq!(needs("0000000000003000"), "CAP_NET_ADMIN over this network");
    }

    #[test]
    fn the_line_at_fault_is_found_in_every_wording() {
        for (message, line) in [
            ("iptables-restore: line 3 failed\n", Some(3)),
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load target `X'\n\nError occurred at line: 12\nTry `iptables-restore -h' for more information.\n",
                Some(12),
            ),
            (
                "iptables-nft-restore: line 7: CHAIN_DEL failed (Device or resource busy): chain X\n",
                Some(7),
            ),
            (
                "Another app is currently holding the xtables lock; still 4s 0us time ahead",
                None,
            ),
            ("command line is wrong", None),
        ] {
            assert_eq!(faulty_line(message), line, "{message}");
        }
    }

    #[test]
    fn a_lock_is_distinguished_from_other_problems() {
        let ended = |script: &str| {
            let words = ["-c", script];
            run("iptables", OsStr::new("sh"), &words, "").unwrap_err()
        };
        let held = "echo 'Another app is currently holding the xtables lock; stopped waiting after 5s.' >&2; exit 4";
        assert!(matches!(ended(held), XtError::Locked { .. }));
        let denied = "echo 'Could not fetch rule set generation id: Permission denied' >&2; exit 4";
        assert!(matches!(ended(denied), XtError::Refused { .. }));
    }

    #[test]
    fn a_kernel_without_tables_is_distinguished_from_other_problems() {
        for (message, missing) in [
            (
                "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)",
                true,
            ),
            (
                "iptables-save v1.8.9 (legacy): Cannot initialize: Table does not exist (do you need to insmod?)",
                true,
            ),
            (
                "iptables: Failed to initialize nft: Protocol not supported",
                true,
            ),
            (
                "iptables-save/1.8.9 (nf_tables) Failed to initialize nft: Protocol not supported",
                true,
            ),
            (
                "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)",
                false,
            ),
            (
                "iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)",
                false,
            ),
            (
                "Warning: Extension comment revision 0 not supported, missing kernel module?\niptables-restore: line 32 failed",
                false,
            ),
        ] {
            let error = failure("iptables", ExitStatus::from_raw(3 << 8), message);
            match error {
                XtError::Missing { .. } => assert!(missing, "{message}"),
                XtError::NotPermitted { .. } => assert!(message.contains("root"), "{message}"),
                XtError::Refused { .. } => {
                    assert!(!missing && !message.contains("root"), "{message}");
                }
                other => panic!("{message}: {other}"),
            }
        }
    }

    #[test]
    fn large_input_and_output_do_not_block_each_other() {
        let input = "0123456789\n".repeat(100_000);
        assert_eq!(run("cat", OsStr::new("cat"), &[], &input).unwrap(), input);
    }

    #[test]
    fn a_child_that_does_not_read_is_no_problem() {
        let input = "0123456789\n".repeat(100_000);
        assert_eq!(run("true", OsStr::new("true"), &[], &input).unwrap(), "");
        let error = run("false", OsStr::new("false"), &[], &input).unwrap_err();
        assert!(
            matches!(error, XtError::Refused { line: None, .. }),
            "{error}"
        );
    }
}
