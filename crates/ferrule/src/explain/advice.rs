//! What to do where something is wrong: the last sentences of an answer.

use ferrule_core::desired::explain::{Fate, Lack};
use ferrule_core::model::ServiceKey;

use super::answer::{Asked, View};
use super::words::policy_field;

/// One sentence per thing to do, each once.
pub fn lines(view: &View<'_>, asked: &[Asked]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for port in asked {
        let kernel = port_in_kernel(view, port).into_iter();
        let fates = port.frontends.iter().filter_map(|(number, fate)| {
            let kind = port.explained.exposure.frontends[*number].kind;
            about(port, *fate, policy_field(kind))
        });
        for advice in kernel.chain(fates) {
            let line = format!("To do: {advice}");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

fn port_in_kernel(view: &View<'_>, asked: &Asked) -> Option<String> {
    let lane = &view.kernel?.families[asked.explained.family];
    let key = &asked.explained.exposure.key;
    if lane.refused.contains_key(key) {
        return Some(format!(
            "change what the kernel refuses in {}, or report it.",
            key.service
        ));
    }
    lane.error
        .is_some()
        .then(|| "read the log of the proxy; it tries again by itself.".to_owned())
}

fn about(asked: &Asked, fate: Fate, policy: &str) -> Option<String> {
    let explained = &asked.explained;
    let service = &explained.exposure.key.service;
    Some(match fate {
        Fate::Balanced(_) => return None,
        Fate::Refused => refused(explained.lack.as_ref()?, service, explained.family.as_str()),
        Fate::NoneLocal => format!(
            "run a ready Pod of {service} on this node, send traffic to nodes that have one, or set {policy} to Cluster."
        ),
        Fate::SourceRange => {
            format!("add the client's network to spec.loadBalancerSourceRanges of {service}.")
        }
        Fate::NoNodePorts => {
            "give the Node an address of this family, or configure nodePortAddresses.".to_owned()
        }
        Fate::Shadowed => {
            format!("remove the address from one of the Services; {service} takes it over then.")
        }
    })
}

fn refused(lack: &Lack, service: &ServiceKey, family: &str) -> String {
    let (namespace, name) = (service.namespace(), service.name());
    match lack {
        Lack::NoSlices { other_family: true } => format!(
            "give the Pods {family} addresses, or remove {family} from spec.ipFamilies of {service}."
        ),
        Lack::NoSlices {
            other_family: false,
        }
        | Lack::NoEndpoints => format!(
            "compare spec.selector with the labels of the Pods: `kubectl describe service -n {namespace} {name}`, `kubectl get pods -n {namespace} --show-labels`."
        ),
        Lack::NoPort { .. } => format!(
            "compare spec.ports[].name, targetPort and protocol of {service} with the ports of its Pods."
        ),
        Lack::NoneReady { .. } => format!(
            "find out why the Pods are not ready: `kubectl get pods -n {namespace}`, `kubectl describe pod`."
        ),
    }
}
