//! Which proxy stands between us and the API server, if any.
//!
//! In: `proxy-url` of the kubeconfig, or the environment's `HTTPS_PROXY`, `HTTP_PROXY` and
//! `NO_PROXY`. Out: a [`Proxy`], or none. The rules are those of client-go, and so of Go's own
//! library: a `proxy-url` is always used; the environment's proxies never for `localhost` and
//! loopback addresses, nor for what `NO_PROXY` names. How to connect through one is in `route`.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use ipnet::IpNet;
use secrecy::SecretString;

/// A proxy on the way to the API server.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub protocol: Protocol,
    /// Scheme, host and port, without credentials.
    pub address: Uri,
    /// What named it: a variable or a field of the kubeconfig.
    pub origin: &'static str,
    /// The value of `Proxy-Authorization`, for HTTP proxies.
    pub basic: Option<HeaderValue>,
    /// User and password, for SOCKS proxies.
    pub login: Option<(String, SecretString)>,
}

/// How to speak with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    /// HTTP within TLS.
    Https,
    Socks5,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.to_string();
        write!(f, "{} ({})", address.trim_end_matches('/'), self.origin)
    }
}

/// Why a text names no proxy. The text itself is not shown: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("could not parse: a proxy is written as scheme://[user:password@]host[:port]")]
    Unparsable,
    #[error("unsupported scheme {0:?}, must be http, https, or socks5")]
    Scheme(String),
}

/// The environment's words about proxies; empty where it says nothing.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `HTTPS_PROXY`.
    pub https: SecretText,
    /// `HTTP_PROXY`.
    pub http: SecretText,
    /// `NO_PROXY`.
    pub no: String,
}

/// A text that may hold a password, and so is not shown.
#[derive(Clone, Default)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "(set)" })
    }
}

impl Variables {
    /// The proxy on the way to `target`.
    ///
    /// What is no proxy at all is named together with its variable.
    pub fn proxy_for(&self, target: &Uri) -> Result<Option<Proxy>, (&'static str, ProxyError)> {
        let (origin, text) = match target.scheme_str() {
            Some("https") => ("HTTPS_PROXY", self.https.0.trim()),
            _ => ("HTTP_PROXY", self.http.0.trim()),
        };
        let default_port = if origin == "HTTPS_PROXY" { 443 } else { 80 };
        let host = target.host().unwrap_or_default();
        let port = target.port_u16().unwrap_or(default_port);
        if text.is_empty() || is_direct(&self.no, host, port) {
            return Ok(None);
        }
        let text = completed(text).map_err(|error| (origin, error))?;
        let proxy = Proxy::parse(&text, origin).map_err(|error| (origin, error))?;
        Ok(Some(proxy))
    }
}

/// The address with a scheme, which is `http` where there is none.
fn completed(text: &str) -> Result<String, ProxyError> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    // Most likely a scheme with a typo, which must not be taken for the host.
    if text.trim_end_matches('/').contains('/') {
        return Err(ProxyError::Unparsable);
    }
    Ok(format!("http://{text}"))
}

impl Proxy {
    /// Reads the address of a proxy, with its scheme.
    pub fn parse(text: &str, origin: &'static str) -> Result<Self, ProxyError> {
        let uri: Uri = text.parse().map_err(|_| ProxyError::Unparsable)?;
        let (protocol, default_port) = match uri.scheme_str() {
            Some("http") => (Protocol::Http, 80),
            Some("https") => (Protocol::Https, 443),
            Some("socks5" | "socks5h") => (Protocol::Socks5, 1080),
            Some(scheme) => return Err(ProxyError::Scheme(scheme.to_owned())),
            None => return Err(ProxyError::Unparsable),
        };
        // The library splits off and decodes the credentials.
        let matcher = Matcher::builder().all(text).build();
        let intercept = matcher
            .intercept(&Uri::from_static("http://any/"))
            .ok_or(ProxyError::Unparsable)?;
        let host = intercept.uri().host().unwrap_or_default();
        if host.is_empty() {
            return Err(ProxyError::Unparsable);
        }
        let port = intercept.uri().port_u16().unwrap_or(default_port);
        let scheme = uri.scheme_str().unwrap_or_default();
        let address = format!("{scheme}://{host}:{port}/");
        let login = intercept.raw_auth();
        Ok(Self {
            protocol,
            address: address.parse().map_err(|_| ProxyError::Unparsable)?,
            origin,
            basic: intercept.basic_auth().cloned(),
            login: login.map(|(user, password)| (user.to_owned(), password.into())),
        })
    }
}

/// Whether the environment's proxy is not for this host and port.
fn is_direct(no_proxy: &str, host: &str, port: u16) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback()) {
        return true;
    }
    no_proxy
        .split(',')
        .map(|entry| entry.trim().to_ascii_lowercase())
        .any(|entry| covers(&entry, &host, ip, port))
}

/// Whether one entry of `NO_PROXY` names this host and port.
fn covers(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return ip.is_some_and(|ip| network.contains(&ip));
    }
    let (name, only_port) = split_port(entry);
    if name.is_empty() || only_port.is_some_and(|only| only != port.to_string()) {
        return false;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address);
    }
    let name = name
        .strip_prefix("*")
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(name);
    match host.strip_suffix(name) {
        // With a dot in front only what is below the name is meant, without one the name too.
        Some("") => !name.starts_with('.'),
        Some(rest) => name.starts_with('.') || rest.ends_with('.'),
        None => false,
    }
}

/// `host:port` in its parts; an IPv6 address needs brackets to have a port.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((name, rest)) = entry.strip_prefix('[').and_then(|e| e.split_once(']')) {
        return (name, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn variables(https: &str, http: &str, no: &str) -> Variables {
        Variables {
            https: SecretText(https.to_owned()),
            http: SecretText(http.to_owned()),
            no: no.to_owned(),
        }
    }

    fn proxy_for(variables: &Variables, target: &str) -> Option<String> {
        let proxy = variables.proxy_for(&target.parse().unwrap()).unwrap();
        proxy.map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_scheme_of_the_api_server_picks_the_variable() {
        let both = variables("10.0.0.9:3128", "http://proxy.example", "");
        assert_eq!(
            proxy_for(&both, "https://10.0.0.1:6443").as_deref(),
            Some("http://10.0.0.9:3128 (HTTPS_PROXY)")
        );
        assert_eq!(
            proxy_for(&both, "http://10.0.0.1:8080").as_deref(),
            Some("http://proxy.example:80 (HTTP_PROXY)")
        );
        let neither = variables("", " ", "");
        assert_eq!(proxy_for(&neither, "https://10.0.0.1"), None);
    }

    #[test]
    fn loopback_is_never_proxied_by_the_environment() {
        let proxied = variables("http://10.0.0.9:3128", "", "");
        for target in [
            "https://localhost:6443",
            "https://LOCALHOST",
            "https://127.0.0.1:6443",
            "https://127.8.9.1",
            "https://[::1]:6443",
        ] {
            assert_eq!(proxy_for(&proxied, target), None, "{target}");
        }
        assert!(proxy_for(&proxied, "https://localhost.example").is_some());
    }

    #[test]
    fn no_proxy_names_hosts_networks_domains_and_ports() {
        let direct = |no_proxy: &str, target: &str| {
            proxy_for(&variables("http://10.0.0.9:3128", "", no_proxy), target).is_none()
        };
        for (entry, yes, no) in [
            ("*", &["https://a.example"][..], &[][..]),
            (
                "172.30.0.1",
                &["https://172.30.0.1:443"],
                &["https://172.30.0.10", "https://172.30.0.1.example"],
            ),
            (
                "172.30.0.1:443",
                &["https://172.30.0.1"],
                &["https://172.30.0.1:6443"],
            ),
            (
                "172.30.0.0/16",
                &["https://172.30.7.8:6443"],
                &["https://172.31.0.1", "https://a.example"],
            ),
            (
                "fd00::/8",
                &["https://[fd00::1]:6443"],
                &["https://[2001:db8::1]"],
            ),
            (
                "fd00::1",
                &["https://[fd00::1]:6443"],
                &["https://[fd00::2]"],
            ),
            (
                "[fd00::1]:6443",
                &["https://[fd00::1]:6443"],
                &["https://[fd00::1]:443"],
            ),
            (
                "a.example",
                &[
                    "https://a.example",
                    "https://b.a.example",
                    "https://A.Example",
                ],
                &["https://ba.example", "https://example"],
            ),
            (
                ".a.example",
                &["https://b.a.example:6443"],
                &["https://a.example", "https://ba.example"],
            ),
            (
                "*.a.example",
                &["https://b.a.example"],
                &["https://a.example"],
            ),
            (
                "a.example:6443",
                &["https://a.example:6443", "https://b.a.example:6443"],
                &["https://a.example"],
            ),
            (
                "x, , a.example ,y",
                &["https://a.example"],
                &["https://b.example"],
            ),
            (":6443", &[], &["https://a.example:6443"]),
        ] {
            for target in yes {
                assert!(direct(entry, target), "{entry} covers {target}");
            }
            for target in no {
                assert!(!direct(entry, target), "{entry} does not cover {target}");
            }
        }
    }

    #[test]
    fn credentials_are_split_off_and_not_shown() {
        let proxy = Proxy::parse("http://me:p%40ss@10.0.0.9:3128/x", "proxy-url").unwrap();
        assert_eq!(proxy.address, "http://10.0.0.9:3128/");
        assert_eq!(proxy.basic.as_ref().unwrap(), "Basic bWU6cEBzcw==");
        assert_eq!(proxy.to_string(), "http://10.0.0.9:3128 (proxy-url)");
        assert!(!format!("{proxy:?}").contains("bWU"), "{proxy:?}");
        let socks = Proxy::parse("socks5://me:p%40ss@proxy.example", "proxy-url").unwrap();
        assert_eq!(socks.protocol, Protocol::Socks5);
        assert_eq!(socks.address, "socks5://proxy.example:1080/");
        let (user, password) = socks.login.unwrap();
        assert_eq!((user.as_str(), password.expose_secret()), ("me", "p@ss"));
        let shown = format!("{:?}", variables("http://me:secret@h", "", ""));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_is_no_proxy_is_an_error() {
        let error = |text| Proxy::parse(text, "proxy-url").unwrap_err();
        for text in ["", "10.0.0.9:3128", "http://", "http://:3128", "a b", "/x"] {
            assert_eq!(error(text), ProxyError::Unparsable, "{text}");
        }
        assert_eq!(
            error("ftp://10.0.0.9").to_string(),
            "unsupported scheme \"ftp\", must be http, https, or socks5"
        );
        let target = "https://10.0.0.1".parse().unwrap();
        let wrong = variables("http//nowhere", "", "").proxy_for(&target);
        assert_eq!(wrong.unwrap_err(), ("HTTPS_PROXY", ProxyError::Unparsable));
    }
}
