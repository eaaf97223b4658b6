//! Issues about contested addresses, for the Service that lost one and for the one that holds it:
//! who the other is, and which rule decided.
//!
//! In: one Service's plan, how it stands, and the claims. Out: issues, capped. The texts are made
//! when they are asked for, so an address that changes hands costs its many rivals nothing.

use super::claims::{Claim, Claims, Standing};
use super::family::Plan;
use super::{Exposure, Frontend, FrontendKind};
use crate::issue::{Issue, ObjectKey, Severity};
use crate::model::{Family, Protocol, ServiceKey, format_socket};

/// Lost addresses, and held ones, that are listed one by one for a Service. One more issue says
/// how many there are.
const MOST_LISTED: usize = 8;

/// Adds the issues of one Service.
pub(super) fn report(
    plan: &Plan,
    standing: Standing,
    claims: &Claims,
    family: Family,
    issues: &mut Vec<Issue>,
) {
    let mut left = Standing {
        lost: standing.lost.min(MOST_LISTED),
        held: standing.held.min(MOST_LISTED),
    };
    let all = plan.exposures.iter().flat_map(|exposure| {
        let frontends = exposure.frontends.iter();
        frontends.map(move |frontend| (exposure, frontend))
    });
    for (exposure, frontend) in all {
        if left == Standing::default() {
            break;
        }
        let left = if frontend.shadowed {
            &mut left.lost
        } else {
            &mut left.held
        };
        if *left > 0
            && let Some(issue) = about(exposure, frontend, plan.created, claims, family)
        {
            issues.push(issue);
            *left -= 1;
        }
    }
    let Some(exposure) = plan.exposures.first() else {
        return;
    };
    let service = &exposure.key.service;
    issues.extend(rest(service, standing.lost, Severity::Warning, family));
    issues.extend(rest(service, standing.held, Severity::Note, family));
}

/// The issue about one frontend; none unless another Service port claims its address.
fn about(
    exposure: &Exposure,
    frontend: &Frontend,
    created: i64,
    claims: &Claims,
    family: Family,
) -> Option<Issue> {
    let key = &exposure.key;
    let address = exposure.address(frontend);
    let holder = claims.holder(&address)?;
    let text = address_text(frontend, key.protocol, family);
    let (message, severity) = if frontend.shadowed {
        if holder.is_of(key) {
            return None; // Held all the same, as another kind.
        }
        let other = holder.port_key(&address);
        let rule = rule(holder, frontend.kind, created);
        (
            format!("{text} is held by {other}, which receives its traffic; {rule}"),
            Severity::Warning,
        )
    } else {
        let rival = claims.next(&(address, holder.clone()))?;
        let other = rival.port_key(&address);
        let rule = rule(holder, rival.kind, rival.created);
        (
            format!("{text} is also claimed by {other}; this Service receives its traffic; {rule}"),
            Severity::Note,
        )
    };
    Some(Issue {
        object: ObjectKey::Service(key.service.clone()),
        field: frontend.kind.field().to_owned(),
        message,
        severity,
    })
}

/// Why `holder` ranks before a claim of this kind and age.
fn rule(holder: &Claim, kind: FrontendKind, created: i64) -> String {
    if holder.kind != kind {
        let (first, then) = (holder.kind.as_str(), kind.as_str());
        format!("decided by kind ({first} before {then})")
    } else if holder.created != created {
        "decided by age (the Service created first)".to_owned()
    } else {
        "decided by name (both were created in the same second)".to_owned()
    }
}

fn rest(service: &ServiceKey, count: usize, severity: Severity, family: Family) -> Option<Issue> {
    if count <= MOST_LISTED {
        return None;
    }
    let what = match severity {
        Severity::Warning => "are held by other Services",
        Severity::Note => "are also claimed by other Services",
    };
    Some(Issue {
        object: ObjectKey::Service(service.clone()),
        field: "addresses".to_owned(),
        message: format!(
            "{count} {family} addresses {what}; only {MOST_LISTED} of them are listed one by one"
        ),
        severity,
    })
}

fn address_text(frontend: &Frontend, protocol: Protocol, family: Family) -> String {
    match frontend.ip {
        Some(ip) => format!("{}/{protocol}", format_socket(ip, frontend.port)),
        None => format!("NodePort {}/{protocol} ({family})", frontend.port),
    }
}
