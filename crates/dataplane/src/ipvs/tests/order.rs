//! Steps come in an order in which no moment is wrong.

use super::*;

fn at(steps: &[Step], wanted: impl Fn(&Step) -> bool) -> usize {
    let found = steps.iter().position(wanted);
    found.unwrap_or_else(|| panic!("no such step in {steps:#?}"))
}

/// A load balancer IP for some sources.
fn guarded() -> (Cluster, Wanted) {
    let mut cluster = cluster();
    let wanted = wanted(&cluster);
    let ranged = balanced("a", "198.51.100.10").source_ranges(&["203.0.113.0/24"]);
    cluster.service(ranged).slice(endpoints("a", &[1]));
    (cluster, wanted)
}

#[test]
fn ipvs_052_an_address_answers_when_its_firewall_is_there() {
    let (mut cluster, mut wanted) = guarded();
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    let vip = key("198.51.100.10", 80);
    let allow = at(&steps, |s| matches!(s, Step::Enter(Set::SourceCidr, _)));
    let guard = at(&steps, |s| matches!(s, Step::Enter(Set::Firewalled, _)));
    let rules = at(&steps, |s| matches!(s, Step::Rules(_)));
    let server = at(
        &steps,
        |s| matches!(s, Step::AddServer(of, _) if *of == vip),
    );
    let pod = at(&steps, |s| *s == Step::AddDestination(vip, pod(1)));
    let bind = at(&steps, |s| *s == Step::Bind(vip.address));
    let order = [allow, guard, rules, server, pod, bind];
    assert!(order.is_sorted(), "{steps:#?}");
}

#[test]
fn ipvs_082_a_service_goes_in_the_opposite_order() {
    let (mut cluster, mut wanted) = guarded();
    change(&mut cluster, &mut wanted, &[]);
    cluster.no_service("a").no_slice("a-1");
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    let vip = key("198.51.100.10", 80);
    let both = at(
        &steps,
        |s| matches!(s, Step::Rules(c) if !c.occupied.is_empty()),
    );
    let unbind = at(&steps, |s| *s == Step::Unbind(vip.address));
    let server = at(&steps, |s| *s == Step::DeleteServer(vip));
    let guard = at(&steps, |s| matches!(s, Step::Leave(Set::Firewalled, _)));
    let allow = at(&steps, |s| matches!(s, Step::Leave(Set::SourceCidr, _)));
    let none = at(&steps, |s| *s == Step::Rules(Contents::default()));
    let order = [both, unbind, server, guard, allow, none];
    assert!(order.is_sorted(), "{steps:#?}");
    assert_eq!(wanted, Wanted::default());
}

#[test]
fn clients_outside_are_kept_out_before_endpoints_of_other_nodes_come_and_until_they_are_gone() {
    let mut cluster = cluster();
    let local = balanced("a", "198.51.100.10").external_local();
    let here = || slice("a-1", "a", &[ep("10.1.0.1").local(), ep("10.2.0.9")]);
    let elsewhere = || slice("a-1", "a", &[ep("10.2.0.9")]);
    cluster.service(local).slice(here());
    cluster.step();
    let mut wanted = wanted(&cluster);
    let vip = key("198.51.100.10", 80);
    let remote: SocketAddr = ([10, 2, 0, 9], 8080).into();

    cluster.slice(elsewhere());
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    let out = at(&steps, |s| {
        matches!(s, Step::Enter(Set::NoLocalEndpoint, _))
    });
    let rules = at(&steps, |s| matches!(s, Step::Rules(_)));
    let come = at(&steps, |s| *s == Step::AddDestination(vip, remote));
    let gone = at(&steps, |s| *s == Step::DeleteDestination(vip, pod(1)));
    assert!([out, rules, come, gone].is_sorted(), "{steps:#?}");

    cluster.slice(here());
    let difference = change(&mut cluster, &mut wanted, &[]);
    let steps = difference.steps;
    let back = at(&steps, |s| *s == Step::AddDestination(vip, pod(1)));
    let close = at(&steps, |s| *s == Step::Close(vip, remote));
    let allow = at(&steps, |s| {
        matches!(s, Step::Leave(Set::NoLocalEndpoint, _))
    });
    assert!([back, close, allow].is_sorted(), "{steps:#?}");
    assert!(difference.closed.contains(&(vip, remote)));
}

#[test]
fn an_address_is_masqueraded_while_it_may_lead_to_other_nodes() {
    let mut cluster = cluster();
    let remote: SocketAddr = ([10, 2, 0, 9], 8080).into();
    let pods = [ep("10.1.0.1").local(), ep("10.2.0.9")];
    cluster
        .service(balanced("a", "198.51.100.10").external_local())
        .slice(slice("a-1", "a", &pods));
    cluster.step();
    let mut wanted = wanted(&cluster);
    let vip = key("198.51.100.10", 80);

    cluster.service(balanced("a", "198.51.100.10"));
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    let masquerade = at(&steps, |s| {
        matches!(s, Step::Leave(Set::LoadBalancerLocal, _))
    });
    let come = at(&steps, |s| *s == Step::AddDestination(vip, remote));
    assert!(masquerade < come, "{steps:#?}");

    cluster.service(balanced("a", "198.51.100.10").external_local());
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    let close = at(&steps, |s| *s == Step::Close(vip, remote));
    let spare = at(&steps, |s| {
        matches!(s, Step::Enter(Set::LoadBalancerLocal, _))
    });
    assert!(close < spare, "{steps:#?}");
}

#[test]
fn ipvs_059_ipvs_062_ipvs_063_a_destination_closes_opens_again_and_is_deleted_when_it_is_gone() {
    let mut cluster = cluster();
    let server = key("10.96.0.1", 80);
    let pods = |second: Option<bool>| {
        let mut pods = vec![ep("10.1.0.1").local()];
        pods.extend(second.map(|ready| {
            let second = ep("10.1.0.2").local();
            if ready { second } else { second.drain() }
        }));
        slice("a-1", "a", &pods)
    };
    cluster.service(service("a")).slice(pods(Some(true)));
    cluster.step();
    let mut wanted = wanted(&cluster);

    cluster.slice(pods(Some(false)));
    let difference = change(&mut cluster, &mut wanted, &[]);
    assert_eq!(difference.steps, [Step::Close(server, pod(2))]);
    let closed = [(server, pod(2))];
    assert_eq!(difference.closed, closed);

    cluster.slice(pods(Some(true)));
    let difference = change(&mut cluster, &mut wanted, &closed);
    assert_eq!(difference.steps, [Step::Open(server, pod(2))]);
    assert_eq!(difference.closed, []);

    cluster.slice(pods(Some(false)));
    change(&mut cluster, &mut wanted, &[]);
    cluster.slice(pods(None));
    let steps = change(&mut cluster, &mut wanted, &closed).steps;
    let loop_back = |s: &Step| matches!(s, Step::Leave(Set::LoopBack, _));
    assert_eq!(steps[0], Step::DeleteDestination(server, pod(2)));
    assert!(loop_back(&steps[1]) && steps.len() == 2, "{steps:#?}");
}

#[test]
fn one_endpoint_costs_one_destination_in_each_virtual_server() {
    let mut cluster = cluster();
    for number in 1..=50 {
        let name = format!("s{number}");
        cluster
            .service(
                service(&name)
                    .at(&format!("10.96.1.{number}"))
                    .node_port(30000 + number),
            )
            .slice(endpoints(&name, &[1, 2]));
    }
    cluster.step();
    let mut wanted = wanted(&cluster);
    cluster.slice(endpoints("s7", &[1, 2, 3]));
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    // The cluster IP and two addresses for the NodePort; and one entry.
    let added = |s: &&Step| matches!(s, Step::AddDestination(_, to) if *to == pod(3));
    assert_eq!(steps.iter().filter(added).count(), 3, "{steps:#?}");
    assert_eq!(steps.len(), 4, "{steps:#?}");
}

#[test]
fn ipvs_018_another_scheduler_or_affinity_changes_a_virtual_server_in_place() {
    let mut cluster = cluster();
    cluster.service(service("a")).slice(endpoints("a", &[1]));
    cluster.step();
    let mut wanted = wanted(&cluster);
    let mut object = service("a").affinity(60);
    object.scheduler = Some("lc".into());
    cluster.service(object);
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    assert!(
        matches!(&steps[..], [Step::SetServer(_, service)]
            if &*service.scheduler == "lc" && service.timeout == 60),
        "{steps:#?}"
    );
}
