//! Where the API server is and who we are to it.
//!
//! In: the kubeconfig path and the master override of the configuration, or the surroundings of
//! a pod. Out: a [`Config`] for the client library, the token if there is one, and the proxy on
//! the way.

use std::io;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use http::uri::InvalidUri;
use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster,
    NamedContext,
};
use secrecy::{ExposeSecret as _, SecretString};

use super::proxy::{Proxy, ProxyError, SecretText, Variables};

/// What the configuration says about the API server. Both empty means the pod's own account.
///
/// `clientConnection` also has `qps`, `burst` and two content types. They have no place here: four
/// watches and a rare event need no throttle of ours, and we speak JSON only.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Path of a kubeconfig; may be empty.
    pub kubeconfig: String,
    /// Address of the API server, instead of the one in the kubeconfig; may be empty.
    pub master: String,
}

/// Why there can be no connection to an API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Neither kubeconfig nor master is given, and this is no pod.
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and \
         KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
    /// The kubeconfig is not there.
    #[error("stat {path}: no such file or directory")]
    NoKubeconfig { path: String },
    /// The kubeconfig makes no sense.
    #[error("{path}: not a usable kubeconfig")]
    Kubeconfig {
        path: String,
        #[source]
        source: KubeconfigError,
    },
    /// The kubeconfig names a proxy that is none.
    #[error("{path}: invalid 'proxy-url' for cluster {cluster:?}")]
    Proxy {
        path: String,
        cluster: String,
        #[source]
        source: ProxyError,
    },
    /// The address of the API server is none.
    #[error("{address:?} is not the address of an API server")]
    Address {
        address: String,
        #[source]
        source: Option<InvalidUri>,
    },
    /// The token cannot be read.
    #[error("open {}: {reason}", path.display())]
    Token { path: PathBuf, reason: String },
    /// The kubeconfig's token has line ends or the like in it.
    #[error("{path}: the user's token has characters that no token can have")]
    Unsendable { path: String },
    /// The pieces do not fit together, e.g. a certificate and its key.
    #[error("cannot make a client of this configuration")]
    Client(#[source] kube::Error),
}

/// What a pod, or any process, finds around it about its API server.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    pub host: String,
    pub port: String,
    /// The folder with the account's token and the cluster's certificate authority.
    pub account: PathBuf,
    /// The environment's proxies; they are not only for pods.
    pub proxies: Variables,
}

impl Pod {
    /// The pod this process runs in, if it does.
    #[expect(
        clippy::disallowed_methods,
        reason = "clusters and administrators name API servers and proxies by these variables"
    )]
    pub fn around_us() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        // As in Go: the capital name first, and an empty value is none.
        let either = |name: &str| match variable(name) {
            value if value.is_empty() => variable(&name.to_ascii_lowercase()),
            value => value,
        };
        Self {
            host: variable("KUBERNETES_SERVICE_HOST"),
            port: variable("KUBERNETES_SERVICE_PORT"),
            account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            proxies: Variables {
                https: SecretText(either("HTTPS_PROXY")),
                http: SecretText(either("HTTP_PROXY")),
                no: either("NO_PROXY"),
            },
        }
    }

    fn kubeconfig(&self) -> Result<Kubeconfig, AccessError> {
        if self.host.is_empty() || self.port.is_empty() {
            return Err(AccessError::NotInCluster);
        }
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        let file = |name| self.account.join(name).to_str().map(str::to_owned);
        let cluster = Cluster {
            server: Some(format!("https://{host}:{}", self.port)),
            certificate_authority: file("ca.crt"),
            ..Cluster::default()
        };
        let account = AuthInfo {
            token_file: file("token"),
            ..AuthInfo::default()
        };
        Ok(single(cluster, account))
    }
}

/// Who we are, sent with every request.
#[derive(Debug)]
pub enum Token {
    /// As the kubeconfig has it.
    Fixed(SecretString),
    /// Someone else keeps it fresh in a file.
    ///
    /// The client library would look once a minute, and takes a line end for part of the token. A
    /// look costs nothing beside a request, so we look every time.
    File { path: PathBuf, last: SecretString },
}

impl Token {
    fn open(path: PathBuf) -> Result<Self, AccessError> {
        match std::fs::read_to_string(&path) {
            Ok(token) => Ok(Self::File {
                path,
                last: token.trim().into(),
            }),
            Err(error) => {
                // The words of the reference, without the number that ours append.
                let reason = match error.kind() {
                    io::ErrorKind::NotFound => "no such file or directory".to_owned(),
                    io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
                    _ => error.to_string(),
                };
                Err(AccessError::Token { path, reason })
            }
        }
    }

    /// The token as it is now. While the file is being replaced, the last one will do.
    pub fn header(&mut self) -> Option<HeaderValue> {
        if let Self::File { path, last } = self
            && let Ok(token) = std::fs::read_to_string(path)
            && !token.trim().is_empty()
        {
            *last = token.trim().into();
        }
        let (Self::Fixed(token) | Self::File { last: token, .. }) = self;
        let token = token.expose_secret();
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Everything needed to make a client.
#[derive(Debug)]
pub struct Recipe {
    pub config: Config,
    pub token: Option<Token>,
    pub proxy: Option<Proxy>,
    /// A variable that names no proxy, and why. As in Go, it is ignored.
    pub ignored: Option<(&'static str, ProxyError)>,
}

/// Keeps the client library from reading the environment's proxies itself: it does so in other
/// ways than Go, and fails on what it cannot parse.
const NO_PROXY_OF_THE_LIBRARY: &str = "http://proxy.invalid";

impl Access {
    /// Reads whatever files are involved, as they are now.
    pub fn read(&self, pod: &Pod) -> Result<Recipe, AccessError> {
        let path = self.kubeconfig.clone();
        let mut kubeconfig = match (self.kubeconfig.is_empty(), self.master.is_empty()) {
            (true, true) => pod.kubeconfig()?,
            (true, false) => single(Cluster::default(), AuthInfo::default()),
            (false, _) => read_file(&self.kubeconfig)?,
        };
        let user_has_certificate = has_certificate(&kubeconfig);
        let mut authority = None;
        let named_proxy = named_proxy(&path, &mut kubeconfig)?;
        if let Some(cluster) = current_cluster(&mut kubeconfig) {
            if !self.master.is_empty() {
                cluster.server = Some(self.master.clone());
            }
            if cluster.certificate_authority_data.is_none() {
                authority.clone_from(&cluster.certificate_authority);
            }
            let secure = user_has_certificate || speaks_tls(cluster);
            if let Some(server) = &mut cluster.server {
                *server = complete(server, secure)?;
            }
        }
        let mut config =
            Config::try_from(kubeconfig).map_err(|source| AccessError::Kubeconfig {
                path: path.clone(),
                source,
            })?;
        let (proxy, ignored) = match (named_proxy, pod.proxies.proxy_for(&config.cluster_url)) {
            (Some(proxy), _) => (Some(proxy), None),
            (None, Ok(proxy)) => (proxy, None),
            (None, Err(ignored)) => (None, Some(ignored)),
        };
        forget_placeholder(&mut config);
        // Followed when it is replaced, as the account's certificate authority is in time.
        config.root_cert_file = authority.map(PathBuf::from);
        // Our reflectors decide about trying again, and say so.
        config.default_retry = false;
        // Tokens are our part: the library reads their files less often, line ends included.
        let user = &mut config.auth_info;
        let token = match (user.token_file.take(), user.token.take()) {
            (Some(path), _) => Some(Token::open(PathBuf::from(path))?),
            (None, Some(token)) => {
                let mut token = Token::Fixed(token);
                token.header().ok_or(AccessError::Unsendable { path })?;
                Some(token)
            }
            (None, None) => None,
        };
        // As the library has it, a token beats a plugin.
        if token.is_some() {
            user.exec = None;
        }
        Ok(Recipe {
            config,
            token,
            proxy,
            ignored,
        })
    }
}

/// The proxy of the kubeconfig's cluster. Without one, the library finds a placeholder there.
fn named_proxy(path: &str, kubeconfig: &mut Kubeconfig) -> Result<Option<Proxy>, AccessError> {
    let name = current_context(kubeconfig).map(|context| context.cluster.clone());
    let Some(cluster) = current_cluster(kubeconfig) else {
        return Ok(None);
    };
    let url = cluster.proxy_url.as_deref().unwrap_or_default();
    if url.is_empty() {
        cluster.proxy_url = Some(NO_PROXY_OF_THE_LIBRARY.to_owned());
        return Ok(None);
    }
    let proxy = Proxy::parse(url, "proxy-url").map_err(|source| AccessError::Proxy {
        path: path.to_owned(),
        cluster: name.unwrap_or_default(),
        source,
    })?;
    Ok(Some(proxy))
}

/// Removes what was put there for the library, which also shows it to credential plugins.
fn forget_placeholder(config: &mut Config) {
    config.proxy_url = None;
    let plugin = config.auth_info.exec.as_mut();
    if let Some(cluster) = plugin.and_then(|plugin| plugin.cluster.as_mut())
        && cluster.proxy_url.as_deref() == Some(NO_PROXY_OF_THE_LIBRARY)
    {
        cluster.proxy_url = None;
    }
}

fn read_file(path: &str) -> Result<Kubeconfig, AccessError> {
    if let Err(error) = std::fs::metadata(path)
        && error.kind() == io::ErrorKind::NotFound
    {
        let path = path.to_owned();
        return Err(AccessError::NoKubeconfig { path });
    }
    Kubeconfig::read_from(Path::new(path)).map_err(|source| AccessError::Kubeconfig {
        path: path.to_owned(),
        source,
    })
}

/// A kubeconfig of one cluster and one user.
fn single(cluster: Cluster, user: AuthInfo) -> Kubeconfig {
    let name = || "only".to_owned();
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: name(),
            cluster: Some(cluster),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name(),
            auth_info: Some(user),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: name(),
            context: Some(Context {
                cluster: name(),
                user: Some(name()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    }
}

fn current_context(kubeconfig: &Kubeconfig) -> Option<&Context> {
    let current = kubeconfig.current_context.as_ref()?;
    let named = kubeconfig.contexts.iter().find(|c| c.name == *current)?;
    named.context.as_ref()
}

fn current_cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let name = current_context(kubeconfig)?.cluster.clone();
    let named = kubeconfig.clusters.iter_mut().find(|c| c.name == name)?;
    named.cluster.as_mut()
}

fn has_certificate(kubeconfig: &Kubeconfig) -> bool {
    let user = current_context(kubeconfig).and_then(|context| context.user.as_ref());
    let named = kubeconfig.auth_infos.iter().find(|u| Some(&u.name) == user);
    named
        .and_then(|named| named.auth_info.as_ref())
        .is_some_and(|user| {
            user.client_certificate.is_some() || user.client_certificate_data.is_some()
        })
}

fn speaks_tls(cluster: &Cluster) -> bool {
    cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true)
}

/// An address as people write it, with the scheme it must have had in mind.
fn complete(address: &str, secure: bool) -> Result<String, AccessError> {
    let full = match (address.contains("://"), secure) {
        (true, _) => address.to_owned(),
        (false, true) => format!("https://{address}"),
        (false, false) => format!("http://{address}"),
    };
    let bad = |source| AccessError::Address {
        address: address.to_owned(),
        source,
    };
    match full.parse::<http::Uri>() {
        Ok(uri) if uri.host().is_some_and(|host| !host.is_empty()) => Ok(full),
        Ok(_) => Err(bad(None)),
        Err(error) => Err(bad(Some(error))),
    }
}
