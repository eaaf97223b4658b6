//! Optional features of the API server, and whether to use them.
//!
//! In: the server's refusals. Out: whether the next request asks for the feature. A refusal holds
//! for the server that gave it, and not for ever: servers are upgraded, and behind one address may
//! be several releases. The caller brings the clock.

use std::time::Duration;

use tokio::time::Instant;

/// One optional feature of the API server.
#[derive(Debug)]
pub struct Capability {
    wanted: bool,
    refused: Option<Refused>,
    /// The server whose refusal is in the log already.
    logged: Option<String>,
}

#[derive(Debug)]
struct Refused {
    host: String,
    until: Instant,
}

impl Capability {
    /// A feature that is used where the server has it, if it is `wanted` at all.
    pub fn new(wanted: bool) -> Self {
        Self {
            wanted,
            refused: None,
            logged: None,
        }
    }

    /// Whether to ask `host` for it now.
    pub fn is_on(&self, host: &str, now: Instant) -> bool {
        let refused = |refused: &Refused| refused.host == host && now < refused.until;
        self.wanted && !self.refused.as_ref().is_some_and(refused)
    }

    /// `host` refused it, which holds for so long. Returns whether the log does not say so yet.
    pub fn refuse(&mut self, host: &str, now: Instant, lasts: Duration) -> bool {
        self.refused = Some(Refused {
            host: host.to_owned(),
            until: now + lasts,
        });
        self.logged.replace(host.to_owned()).as_deref() != Some(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_for_one_server_and_not_for_ever() {
        let (now, hour) = (Instant::now(), Duration::from_hours(1));
        let mut capability = Capability::new(true);
        assert!(capability.is_on("a:6443", now));
        assert!(capability.refuse("a:6443", now, hour), "news");
        assert!(!capability.is_on("a:6443", now + hour / 2));
        assert!(capability.is_on("b:6443", now));
        assert!(capability.is_on("a:6443", now + hour));
        assert!(!capability.refuse("a:6443", now + hour, hour), "logged");
        assert!(!capability.is_on("a:6443", now + hour));
        assert!(capability.refuse("b:6443", now + hour, hour), "news");
    }

    #[test]
    fn what_is_not_wanted_is_never_used() {
        assert!(!Capability::new(false).is_on("a:6443", Instant::now()));
    }
}
