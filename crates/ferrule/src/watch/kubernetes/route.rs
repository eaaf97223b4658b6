//! The way to the API server: a TCP connection, directly or through a proxy.
//!
//! In: the client's configuration, and the [`Proxy`] if there is one. Out: a [`Connector`], one
//! type for all ways, so that the HTTP client on top exists only once. TLS with the API server
//! itself is not here: it begins where the way ends.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use kube::Config;
use kube::client::ConfigExt as _;
use secrecy::ExposeSecret as _;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::proxy::{Protocol, Proxy};

/// Until a TCP connection must stand.
const CONNECT: Duration = Duration::from_secs(10);

// Together: a peer that vanished without a word is noticed after a minute, on an idle connection
// by probes and on a busy one by what it does not acknowledge.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_mins(1);

/// Makes connections to the API server.
pub type Connector = BoxCloneSyncService<Uri, Socket, BoxError>;

/// The way to the API server of this configuration.
pub fn connector(config: &Config, proxy: Option<&Proxy>) -> Result<Connector, kube::Error> {
    let Some(proxy) = proxy else {
        return Ok(boxed(tcp()));
    };
    let to_proxy = match proxy.protocol {
        Protocol::Http | Protocol::Socks5 => boxed(tcp()),
        // As in Go, the proxy's certificate is checked like the API server's.
        Protocol::Https => boxed(config.rustls_https_connector_with_connector(tcp())?),
    };
    let address = proxy.address.clone();
    let speaks_tls = config.cluster_url.scheme_str() == Some("https");
    let connector = match proxy.protocol {
        Protocol::Socks5 => {
            let mut socks = SocksV5::new(address, to_proxy);
            if let Some((user, password)) = &proxy.login {
                socks = socks.with_auth(user.clone(), password.expose_secret().to_owned());
            }
            boxed(socks)
        }
        Protocol::Http | Protocol::Https if speaks_tls => {
            let mut tunnel = Tunnel::new(address, to_proxy);
            if let Some(header) = &proxy.basic {
                tunnel = tunnel.with_auth(header.clone());
            }
            boxed(tunnel)
        }
        Protocol::Http | Protocol::Https => forwarding(address, to_proxy),
    };
    Ok(named(connector, proxy))
}

/// Whether requests go to the proxy itself, which then wants its credentials in each.
pub fn is_forwarding(config: &Config, proxy: &Proxy) -> bool {
    proxy.protocol != Protocol::Socks5 && config.cluster_url.scheme_str() != Some("https")
}

/// Connections that notice when the other side vanishes.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(KEEPALIVE_AFTER));
    tcp.set_keepalive_interval(Some(KEEPALIVE_EVERY));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp
}

fn boxed<C>(connector: C) -> Connector
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Io + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    let socket = |io| Socket {
        io: Box::new(io),
        forwarding: false,
    };
    BoxCloneSyncService::new(connector.map_response(socket).map_err(Into::into))
}

/// The proxy itself is the other end, whatever the target: requests name that in full.
fn forwarding(address: Uri, to_proxy: Connector) -> Connector {
    BoxCloneSyncService::new(service_fn(move |_target: Uri| {
        let connecting = to_proxy.clone().oneshot(address.clone());
        async move {
            let socket = connecting.await?;
            Ok::<_, BoxError>(Socket {
                forwarding: true,
                ..socket
            })
        }
    }))
}

/// Errors say which proxy they are about.
fn named(connector: Connector, proxy: &Proxy) -> Connector {
    let proxy = proxy.to_string();
    BoxCloneSyncService::new(connector.map_err(move |source| {
        let proxy = proxy.clone();
        BoxError::from(ProxyFailure { proxy, source })
    }))
}

/// The proxy could not be reached, or could not reach the API server.
#[derive(Debug, thiserror::Error)]
#[error("proxy {proxy}")]
pub struct ProxyFailure {
    /// Its address and what named it.
    pub proxy: String,
    source: BoxError,
}

/// A connection to the API server or to a proxy before it.
pub struct Socket {
    io: Box<dyn Io>,
    forwarding: bool,
}

/// What the HTTP client needs of a connection.
pub trait Io: Read + Write + Connection + Send + Unpin {}

impl<T: Read + Write + Connection + Send + Unpin> Io for T {}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        // To a proxy the client writes the whole URL.
        let connected = self.io.connected();
        if self.forwarding {
            connected.proxy(true)
        } else {
            connected
        }
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(context, buffer)
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write_vectored(context, slices)
    }
}
