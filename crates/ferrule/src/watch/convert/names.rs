//! Names as the API server accepts them.
//!
//! What comes from an API server has such names already; manifests may have any text, and names go
//! into comments of rules and into JSON. An object with another name is left out.

use ferrule_core::issue::Kind;

use super::Report;
use crate::watch::api;

const LABEL: &str = "is not a DNS label (at most 63 of a-z, 0-9 and -, no - at an end)";
const SUBDOMAIN: &str = "is not a DNS subdomain (DNS labels with dots between, at most 253 \
                         characters)";

/// Whether an object has names that it can have; what is wrong with them is reported.
pub(super) fn are_good(kind: Kind, metadata: &api::Metadata, report: &mut Report) -> bool {
    let namespace = match kind {
        Kind::Service | Kind::EndpointSlice => label(&metadata.namespace),
        Kind::Node | Kind::ServiceCidr => None,
    };
    let name = match kind {
        // Service names of API servers before 1.34 begin with a letter.
        Kind::Service => label(&metadata.name),
        Kind::EndpointSlice | Kind::Node | Kind::ServiceCidr => subdomain(&metadata.name),
    };
    let wrong = [("metadata.namespace", namespace), ("metadata.name", name)];
    let mut good = true;
    for (field, wrong) in wrong {
        if let Some(wrong) = wrong {
            report.warn(field, format!("{wrong}; the {} is left out", kind.as_str()));
            good = false;
        }
    }
    good
}

/// What is wrong with the name of a port, which may have none.
pub(super) fn port(name: &str) -> Option<String> {
    label(name).filter(|_| !name.is_empty())
}

/// What is wrong with the name of a namespace or a Service.
pub(super) fn label(name: &str) -> Option<String> {
    (!is_label(name)).then(|| format!("{name:?} {LABEL}"))
}

/// What is wrong with the name of any other object.
fn subdomain(name: &str) -> Option<String> {
    let good = name.len() <= 253 && name.split('.').all(is_part);
    (!good).then(|| format!("{name:?} {SUBDOMAIN}"))
}

fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// A label of any length: those of a subdomain have no limit of their own.
fn is_part(name: &str) -> bool {
    let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !name.is_empty() && !name.starts_with('-') && !name.ends_with('-') && name.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_are_those_of_the_api_server() {
        let long = |count| "a".repeat(count);
        for good in ["a", "0", "a-b", "a--b", "0a", &long(63)] {
            assert_eq!(label(good), None);
            assert_eq!(subdomain(good), None);
        }
        for good in [
            "a.b",
            "node-1.example.org",
            &long(253),
            &format!("a.{}", long(64)),
        ] {
            assert!(label(good).is_some());
            assert_eq!(subdomain(good), None);
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a_b",
            "a b",
            "a/b",
            "a\"",
            "a\\",
            "a\nb",
            "ä",
            "a:b",
            "a'",
            ".",
            "a..b",
            ".a",
            "a.",
            "a.-b",
            &long(254),
        ] {
            assert!(label(bad).is_some(), "{bad:?}");
            assert!(subdomain(bad).is_some(), "{bad:?}");
        }
        assert!(label(&long(64)).is_some());
    }
}
