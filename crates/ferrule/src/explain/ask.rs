//! Asks the running proxy by its admin socket.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answer::{Answer, Question, VERSION};

/// How long the proxy may take; it answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const MOST: u64 = 64 << 20;

/// Why there is no answer. Each is one sentence with what to do.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing is there, or nobody listens.
    #[error(
        "no proxy answers at {}; run this where ferrule proxy runs, e.g. `kubectl exec -n kube-system PROXY-POD -- ferrule {verb}`, name its --admin-socket with --socket, or read objects from files with --manifests and --node",
        path.display()
    )]
    Absent { path: PathBuf, verb: String },
    /// The socket is another user's.
    #[error("{} belongs to the user of the proxy; run this as that user, usually root", .0.display())]
    Denied(PathBuf),
    /// The conversation failed.
    #[error("the proxy at {} did not answer", path.display())]
    Failed {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The proxy refused the question.
    #[error("the proxy at {} answered: {text}", path.display())]
    Refused { path: PathBuf, text: String },
    /// The answer is of no form that is known here.
    #[error(
        "the program at {} is no ferrule proxy, or one of another version than {}; use the ferrule of its image",
        .0.display(),
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion(PathBuf),
}

/// Asks the proxy that listens at `path`.
pub fn ask(path: &Path, question: &Question) -> Result<Answer, AskError> {
    let other = || AskError::OtherVersion(path.to_owned());
    let body = fetch(
        path,
        &query(question),
        &format!("explain {}", question.target),
    )?;
    serde_json::from_slice::<Answer>(&body)
        .ok()
        .filter(|answer| answer.version == VERSION)
        .ok_or_else(other)
}

/// What the proxy that listens at `path` answers to a query such as `/v1/node`; `verb` is what users
/// called.
pub fn fetch(path: &Path, query: &str, verb: &str) -> Result<Vec<u8>, AskError> {
    let failed = |source: io::Error| AskError::Failed {
        path: path.to_owned(),
        source,
    };
    let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Absent {
            path: path.to_owned(),
            verb: verb.to_owned(),
        },
        io::ErrorKind::PermissionDenied => AskError::Denied(path.to_owned()),
        _ => failed(error),
    })?;
    let reply = exchange(stream, query).map_err(failed)?;
    let other = || AskError::OtherVersion(path.to_owned());
    let (status, body) = parse(&reply).ok_or_else(other)?;
    match status {
        200 => Ok(body.to_vec()),
        400 | 503 => Err(AskError::Refused {
            path: path.to_owned(),
            text: String::from_utf8_lossy(body).trim().to_owned(),
        }),
        _ => Err(other()),
    }
}

fn query(question: &Question) -> String {
    let mut query = format!(
        "/{VERSION}/explain?target={}",
        encoded(&question.target.to_string())
    );
    if let Some(ip) = question.from {
        query.push_str("&from=");
        query.push_str(&encoded(&ip.to_string()));
    }
    query
}

fn exchange(mut stream: UnixStream, query: &str) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET {query} HTTP/1.1\r\nHost: ferrule\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(MOST).read_to_end(&mut reply)?;
    Ok(reply)
}

/// Status and body of a reply that ends with its connection.
fn parse(reply: &[u8]) -> Option<(u16, &[u8])> {
    let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&reply[..end]).ok()?;
    let mut words = head.lines().next()?.split(' ');
    words.next().filter(|word| word.starts_with("HTTP/1."))?;
    let status = words.next()?.parse().ok()?;
    Some((status, &reply[end + 4..]))
}

/// Text as part of a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    text.bytes().fold(String::new(), |encoded, byte| {
        if is_plain(byte) {
            encoded + char::from(byte).encode_utf8(&mut [0; 4])
        } else {
            format!("{encoded}%{byte:02X}")
        }
    })
}

/// The reverse of what a client does to a value of a query; `None` if it is broken.
pub fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_survive_their_encoding() {
        for text in ["shop/web:http", "[fd00::a]:53/UDP", "50% off & more", "ä"] {
            assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
        }
        for broken in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
    }

    #[test]
    fn replies_are_read_and_what_is_no_reply_is_not() {
        let (status, body) = parse(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}").unwrap();
        assert_eq!((status, body), (200, &b"{}"[..]));
        for wrong in [
            &b""[..],
            b"hello",
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0\r\n\r\n",
        ] {
            assert!(parse(wrong).is_none());
        }
    }
}
