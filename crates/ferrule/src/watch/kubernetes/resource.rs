//! What we ask the API server for, to the letter.
//!
//! In: a kind, and how far we know its history. Out: the path and query of a request. The
//! selectors are a promise to those who set up permissions and audit logs: they are kube-proxy's.

use std::fmt::Write as _;

use ferrule_core::issue::Kind;

/// So many objects are asked for at once where the server does pages.
const PAGE: usize = 500;

/// One collection of the API.
#[derive(Debug)]
pub struct Resource {
    /// The word in paths and permissions.
    pub name: &'static str,
    /// The API group; empty for the core group.
    pub group: &'static str,
    path: &'static str,
    labels: Option<&'static str>,
    fields: Option<Fields>,
}

#[derive(Debug)]
enum Fields {
    /// Spares traffic where the server can select by this; the conversion drops the rest anyway.
    Optional(&'static str),
    OwnName,
}

/// Which objects of a collection to ask for.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// The Node we are.
    pub node_name: &'a str,
    /// Whether the server can select by the optional fields.
    pub optional_fields: bool,
}

pub static SERVICES: Resource = Resource {
    name: "services",
    group: "",
    path: "/api/v1/services",
    labels: Some("!service.kubernetes.io/service-proxy-name"),
    // Known to servers since 1.31.
    fields: Some(Fields::Optional("spec.clusterIP!=None")),
};

pub static ENDPOINT_SLICES: Resource = Resource {
    name: "endpointslices",
    group: "discovery.k8s.io",
    path: "/apis/discovery.k8s.io/v1/endpointslices",
    labels: Some(OWN_ENDPOINTS),
    fields: None,
};

/// What there was before EndpointSlices.
pub static ENDPOINTS: Resource = Resource {
    name: "endpoints",
    group: "",
    path: "/api/v1/endpoints",
    labels: Some(OWN_ENDPOINTS),
    fields: None,
};

pub static NODES: Resource = Resource {
    name: "nodes",
    group: "",
    path: "/api/v1/nodes",
    labels: None,
    fields: Some(Fields::OwnName),
};

pub static SERVICE_CIDRS: Resource = Resource {
    name: "servicecidrs",
    group: "networking.k8s.io",
    path: "/apis/networking.k8s.io/v1/servicecidrs",
    labels: None,
    fields: None,
};

// kube-proxy asks for the first only and then keeps, for nothing, the endpoints of Services that
// someone else proxies.
const OWN_ENDPOINTS: &str =
    "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";

/// How far we know the history of a collection, and so what a list must not be older than.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// We know nothing, so any state is news.
    Any,
    /// We have seen this one; going back behind it would undo changes already made.
    At(String),
    /// The server does not know what we have seen, so only its newest state will do.
    Newest,
}

/// Which part of a list.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The first page.
    First,
    /// The page that this token stands for.
    Next(&'a str),
    /// Everything in one answer.
    Whole,
}

impl Resource {
    /// Where objects of a kind are found.
    pub fn of(kind: Kind) -> &'static Self {
        match kind {
            Kind::Service => &SERVICES,
            Kind::EndpointSlice => &ENDPOINT_SLICES,
            Kind::Node => &NODES,
            Kind::ServiceCidr => &SERVICE_CIDRS,
        }
    }

    /// Whether requests select by fields that older servers do not know.
    pub fn has_optional_fields(&self) -> bool {
        matches!(self.fields, Some(Fields::Optional(_)))
    }

    /// All objects as the beginning of a watch, which then goes on.
    pub fn stream(&self, select: Selection<'_>, version: &Version, seconds: u64) -> String {
        let mut query = self.query(select);
        query.add("allowWatchBookmarks", "true");
        if let Version::At(version) = version {
            query.add("resourceVersion", version);
        }
        query.add("resourceVersionMatch", "NotOlderThan");
        query.add("sendInitialEvents", "true");
        query.add("timeoutSeconds", &seconds.to_string());
        query.add("watch", "true");
        query.into_path(self.path)
    }

    /// All objects, or a page of them.
    pub fn list(&self, select: Selection<'_>, version: &Version, part: Part<'_>) -> String {
        let mut query = self.query(select);
        // A page of a version other than 0 means exactly that version, which may be gone.
        let paged = !matches!(version, Version::At(_));
        match part {
            // The token says the version itself, and another one beside it is refused.
            Part::Next(token) => {
                query.add("continue", token);
                query.add("limit", &PAGE.to_string());
                return query.into_path(self.path);
            }
            Part::First if paged => query.add("limit", &PAGE.to_string()),
            Part::First | Part::Whole => {}
        }
        match version {
            Version::Any => query.add("resourceVersion", "0"),
            Version::At(version) => query.add("resourceVersion", version),
            Version::Newest => {}
        }
        query.into_path(self.path)
    }

    /// Changes since `version`.
    pub fn watch(&self, select: Selection<'_>, version: &str, seconds: u64) -> String {
        let mut query = self.query(select);
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &seconds.to_string());
        query.add("watch", "true");
        query.into_path(self.path)
    }

    /// A single object at most: shows whether the collection exists.
    pub fn probe(&self) -> String {
        format!("{}?limit=1", self.path)
    }

    fn query(&self, select: Selection<'_>) -> Query {
        let mut query = Query(Vec::new());
        match &self.fields {
            Some(Fields::Optional(fields)) if select.optional_fields => {
                query.add("fieldSelector", fields);
            }
            Some(Fields::OwnName) => {
                let name = format!("metadata.name={}", select.node_name);
                query.add("fieldSelector", &name);
            }
            Some(Fields::Optional(_)) | None => {}
        }
        if let Some(labels) = self.labels {
            query.add("labelSelector", labels);
        }
        query
    }
}

/// Parameters, in the end sorted by name as other clients send them.
struct Query(Vec<(&'static str, String)>);

impl Query {
    fn add(&mut self, name: &'static str, value: &str) {
        self.0.push((name, encode(value)));
    }

    fn into_path(mut self, path: &str) -> String {
        self.0.sort_unstable();
        let mut text = path.to_owned();
        for (index, (name, value)) in self.0.iter().enumerate() {
            text.push(if index == 0 { '?' } else { '&' });
            text.push_str(name);
            text.push('=');
            text.push_str(value);
        }
        text
    }
}

/// Percent-encodes all but the characters that never need it.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELECT: Selection<'_> = Selection {
        node_name: "n",
        optional_fields: true,
    };

    #[test]
    fn a_page_of_a_known_version_is_never_asked_for() {
        let list = |version: &Version, part| NODES.list(SELECT, version, part);
        assert_eq!(
            list(&Version::Any, Part::First),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn&limit=500&resourceVersion=0"
        );
        assert_eq!(
            list(&Version::At("7".to_owned()), Part::First),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn&resourceVersion=7"
        );
        assert_eq!(
            list(&Version::Newest, Part::First),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn&limit=500"
        );
        assert_eq!(
            list(&Version::Newest, Part::Whole),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn"
        );
        assert_eq!(
            list(&Version::At("7".to_owned()), Part::Next("a+b=")),
            "/api/v1/nodes?continue=a%2Bb%3D&fieldSelector=metadata.name%3Dn&limit=500"
        );
    }

    #[test]
    fn a_stream_names_a_version_only_when_one_is_known() {
        let stream = |version: &Version| SERVICE_CIDRS.stream(SELECT, version, 300);
        let unknown = "/apis/networking.k8s.io/v1/servicecidrs?allowWatchBookmarks=true\
                       &resourceVersionMatch=NotOlderThan&sendInitialEvents=true\
                       &timeoutSeconds=300&watch=true";
        assert_eq!(stream(&Version::Any), unknown);
        assert_eq!(stream(&Version::Newest), unknown);
        assert!(stream(&Version::At("9".to_owned())).contains("&resourceVersion=9&"));
    }

    #[test]
    fn only_optional_fields_can_be_left_out() {
        let without = Selection {
            optional_fields: false,
            ..SELECT
        };
        let list = |resource: &Resource| resource.list(without, &Version::Newest, Part::Whole);
        assert_eq!(
            list(&SERVICES),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name"
        );
        assert!(list(&NODES).contains("fieldSelector=metadata.name%3Dn"));
        assert!(SERVICES.has_optional_fields() && !NODES.has_optional_fields());
    }

    #[test]
    fn whatever_a_value_holds_cannot_become_another_parameter() {
        assert_eq!(encode("a&b=c#d e%/ü~"), "a%26b%3Dc%23d%20e%25%2F%C3%BC~");
    }
}
