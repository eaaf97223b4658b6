//! The lab's own access to the API server: objects as JSON, written by server-side apply.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http::{Method, Request};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Handle;

/// Who writes: server-side apply takes away what this writer said before and says no more.
const WRITER: &str = "lab";
/// The only user; it may do everything.
pub const TOKEN: &str = "lab-token";

/// Kinds stories may write: kind, path of its API, plural, whether it lies in a namespace.
const KINDS: &[(&str, &str, &str, bool)] = &[
    (
        "ClusterRole",
        "apis/rbac.authorization.k8s.io/v1",
        "clusterroles",
        false,
    ),
    (
        "ClusterRoleBinding",
        "apis/rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        false,
    ),
    ("Endpoints", "api/v1", "endpoints", true),
    (
        "EndpointSlice",
        "apis/discovery.k8s.io/v1",
        "endpointslices",
        true,
    ),
    ("Namespace", "api/v1", "namespaces", false),
    ("Node", "api/v1", "nodes", false),
    ("Pod", "api/v1", "pods", true),
    ("Service", "api/v1", "services", true),
    (
        "ServiceCIDR",
        "apis/networking.k8s.io/v1",
        "servicecidrs",
        false,
    ),
];

/// A connection to the API server. Calls block.
#[derive(Clone)]
pub struct Api {
    client: Client,
    runtime: Handle,
}

impl Api {
    /// A client for the server at `url`; nothing is sent yet.
    pub fn new(url: &str, runtime: &Handle) -> Result<Self> {
        let mut config = Config::new(url.parse().context("the API server's address")?);
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(TOKEN.to_owned().into());
        // A machine that is busy with something else lets the server wait for its storage.
        config.read_timeout = Some(Duration::from_mins(1));
        let _context = runtime.enter();
        let client = Client::try_from(config)?;
        Ok(Self {
            client,
            runtime: runtime.clone(),
        })
    }

    /// The connection itself, for whoever must not wait for one answer before the next request.
    pub fn client(&self) -> (Client, Handle) {
        (self.client.clone(), self.runtime.clone())
    }

    /// Whether the server is ready to serve.
    pub fn ready(&self) -> bool {
        let request = Request::get("/readyz").body(Vec::new());
        request.is_ok_and(|request| {
            self.runtime
                .block_on(self.client.request_text(request))
                .is_ok_and(|text| text == "ok")
        })
    }

    /// A page of plain text.
    pub fn page(&self, path: &str) -> Result<String> {
        let request = Request::get(path).body(Vec::new())?;
        Ok(self.runtime.block_on(self.client.request_text(request))?)
    }

    /// Makes an object so, its status too when it has one.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let path = path(object)?;
        let query = format!("?fieldManager={WRITER}&force=true");
        let mut body = object.clone();
        let status = body
            .as_object_mut()
            .and_then(|fields| fields.remove("status"));
        let kind = "application/apply-patch+yaml";
        self.send(&Method::PATCH, &format!("{path}{query}"), kind, &body)?;
        if let Some(status) = status {
            self.merge(&format!("{path}/status"), &json!({ "status": status }))?;
        }
        Ok(())
    }

    /// Changes some fields; null takes one away.
    pub fn merge(&self, path: &str, change: &Value) -> Result<Value> {
        self.send(&Method::PATCH, path, "application/merge-patch+json", change)
    }

    /// Takes an object away. One that is not there is fine.
    pub fn delete(&self, object: &Value) -> Result<()> {
        let body = json!({ "gracePeriodSeconds": 0 });
        let sent = self.send(&Method::DELETE, &path(object)?, "application/json", &body);
        match sent {
            Err(error) if is_missing(&error) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Takes away every object of a kind in a namespace.
    pub fn delete_all(&self, kind: &str, namespace: &str) -> Result<()> {
        let (_, api, plural, _) = known(kind)?;
        let path = format!("/{api}/namespaces/{namespace}/{plural}");
        let body = json!({ "gracePeriodSeconds": 0 });
        self.send(&Method::DELETE, &path, "application/json", &body)
            .map(|_| ())
    }

    fn send(&self, method: &Method, path: &str, kind: &str, body: &Value) -> Result<Value> {
        let bytes = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body)?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", kind)
            .body(bytes)?;
        let answer = self.runtime.block_on(self.client.request(request));
        answer.map_err(|error| match error {
            kube::Error::Api(status) => anyhow!(Refused {
                request: format!("{method} {path}"),
                code: status.code,
                message: status.message,
            }),
            other => anyhow!(other).context(format!("{method} {path}")),
        })
    }
}

/// Where an object lies.
pub fn path(object: &Value) -> Result<String> {
    let kind = object["kind"].as_str().context("an object has no kind")?;
    let (_, api, plural, namespaced) = known(kind)?;
    let name = object["metadata"]["name"]
        .as_str()
        .with_context(|| format!("a {kind} has no name"))?;
    if !namespaced {
        return Ok(format!("/{api}/{plural}/{name}"));
    }
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .with_context(|| format!("{kind} {name} has no namespace"))?;
    Ok(format!("/{api}/namespaces/{namespace}/{plural}/{name}"))
}

/// Whether objects of this kind lie in a namespace.
pub fn is_namespaced(kind: &str) -> Result<bool> {
    known(kind).map(|row| row.3)
}

fn known(kind: &str) -> Result<(&'static str, &'static str, &'static str, bool)> {
    let row = KINDS.iter().find(|row| row.0 == kind);
    row.copied().ok_or_else(|| {
        let known: Vec<_> = KINDS.iter().map(|row| row.0).collect();
        anyhow!("the lab cannot write a {kind}; it knows {known:?}")
    })
}

/// The server understood and said no.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {message} ({code})")]
struct Refused {
    request: String,
    code: u16,
    message: String,
}

fn is_missing(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.code == 404)
}

/// The API version of a kind, as objects spell it.
pub fn version(kind: &str) -> Result<&'static str> {
    let (_, api, _, _) = known(kind)?;
    match api.split_once('/') {
        Some(("api" | "apis", version)) => Ok(version),
        _ => bail!("{api} is not the path of an API"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_under_their_api() {
        let object =
            |kind: &str| json!({"kind": kind, "metadata": {"name": "x", "namespace": "n"}});
        let slice = "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices/x";
        assert_eq!(path(&object("EndpointSlice")).unwrap(), slice);
        assert_eq!(path(&object("Node")).unwrap(), "/api/v1/nodes/x");
        assert_eq!(version("EndpointSlice").unwrap(), "discovery.k8s.io/v1");
        assert_eq!(version("Service").unwrap(), "v1");
        assert!(path(&object("Secret")).is_err());
    }
}
