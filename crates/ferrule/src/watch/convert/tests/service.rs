//! Services: addresses, ports, policies.

use std::net::IpAddr;

use ferrule_core::model::{Family, Protocol, Service, ServiceType, TrafficPolicy};
use ferrule_core::track;

use super::*;

/// A Service with nothing wrong.
fn plain() -> Value {
    json!({
        "metadata": { "namespace": "ns", "name": "web" },
        "spec": {
            "type": "ClusterIP", "clusterIP": "172.30.0.1", "clusterIPs": ["172.30.0.1"],
            "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80 }],
        },
        "status": {},
    })
}

fn dual() -> Value {
    let ips = json!(["172.30.0.1", "fd00:30::1"]);
    with(
        with(plain(), "/spec/clusterIPs", ips),
        "/spec/ipFamilies",
        json!(["IPv4", "IPv6"]),
    )
}

fn event(json: Value) -> Event {
    converted(Kind::Service, json).unwrap()
}

fn put(json: Value) -> (Service, Event) {
    let event = event(json);
    match &event {
        Event::Put {
            object: track::Object::Service(service),
            ..
        } => (service.clone(), event),
        other => panic!("{other:?}"),
    }
}

fn is_gone(event: &Event) -> bool {
    matches!(event, Event::Gone { key, .. } if key.to_string() == "Service ns/web")
}

fn texts(ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_service_is_taken_whole_and_without_remark() {
    let (service, event) = put(plain());
    assert_eq!(issues(&event), Vec::<String>::new());
    assert_eq!(service.key.as_str(), "ns/web");
    assert_eq!(service.kind, ServiceType::ClusterIp);
    assert_eq!(service.cluster_ips.v4, Some("172.30.0.1".parse().unwrap()));
    assert_eq!(service.internal_policy, TrafficPolicy::Cluster);
    assert_eq!(service.affinity_seconds, None);
    assert_eq!(service.created, 0);
    assert_eq!(&*service.ports[0].name, "http");
    assert_eq!(
        (service.ports[0].port.get(), service.ports[0].node_port),
        (80, None)
    );
}

#[test]
fn core_079_headless_unallocated_and_external_name_services_are_gone() {
    let headless = event(with(plain(), "/spec/clusterIP", json!("None")));
    let external = event(with(plain(), "/spec/type", json!("ExternalName")));
    for event in [headless, external] {
        assert!(is_gone(&event));
        assert_eq!(fields(&event), Vec::<String>::new());
    }
    let unallocated = event(with(plain(), "/spec/clusterIP", json!("")));
    assert!(is_gone(&unallocated));
    assert_eq!(fields(&unallocated), ["spec.clusterIP"]);
    assert_eq!(severities(&unallocated), [Severity::Note]);
}

#[test]
fn core_080_each_family_has_its_cluster_ip_or_none() {
    let (service, _) = put(dual());
    assert_eq!(service.cluster_ips.v4, Some("172.30.0.1".parse().unwrap()));
    assert_eq!(service.cluster_ips.v6, Some("fd00:30::1".parse().unwrap()));

    let six_first = with(dual(), "/spec/ipFamilies", json!(["IPv6", "IPv4"]));
    let six_first = with(
        six_first,
        "/spec/clusterIPs",
        json!(["fd00:30::1", "172.30.0.1"]),
    );
    assert_eq!(put(six_first).0.cluster_ips, service.cluster_ips);

    let (single, _) = put(plain());
    assert_eq!(single.cluster_ips.v6, None);

    // Without ipFamilies only clusterIP counts.
    let (old, _) = put(with(dual(), "/spec/ipFamilies", json!([])));
    assert_eq!(old.cluster_ips, single.cluster_ips);
}

#[test]
fn a_cluster_ip_of_the_wrong_family_is_left_out() {
    let (service, event) = put(with(dual(), "/spec/clusterIPs/1", json!("10.0.0.9")));
    assert_eq!(
        (service.cluster_ips.v4.is_some(), service.cluster_ips.v6),
        (true, None)
    );
    assert_eq!(
        issues(&event),
        ["spec.clusterIPs[1]: 10.0.0.9 is not IPv6 as spec.ipFamilies says; it is left out"]
    );
}

#[test]
fn missing_and_unreadable_cluster_ips_are_left_out() {
    let (service, event) = put(with(dual(), "/spec/clusterIPs", json!(["172.30.0.1"])));
    assert_eq!(service.cluster_ips.v6, None);
    assert_eq!(fields(&event), ["spec.clusterIPs"]);

    let (service, event) = put(with(dual(), "/spec/clusterIPs/0", json!("bad")));
    assert_eq!(service.cluster_ips.v4, None);
    assert_eq!(fields(&event), ["spec.clusterIPs[0]"]);

    let (_, event) = put(with(dual(), "/spec/ipFamilies/1", json!("IPv5")));
    assert_eq!(fields(&event), ["spec.ipFamilies[1]"]);

    let event = event_without_any_ip();
    assert!(is_gone(&event));
    assert_eq!(fields(&event), ["spec.clusterIP"]);
}

fn event_without_any_ip() -> Event {
    let old = with(plain(), "/spec/ipFamilies", json!(null));
    event(with(old, "/spec/clusterIP", json!("300.0.0.1")))
}

#[test]
fn a_service_for_another_proxy_is_gone_silently() {
    let label = json!({ "service.kubernetes.io/service-proxy-name": "" });
    let event = event(with(plain(), "/metadata/labels", label));
    assert!(is_gone(&event));
    assert_eq!(fields(&event), Vec::<String>::new());
}

#[test]
fn a_bad_port_costs_that_port_only() {
    let ports = json!([
        { "name": "zero", "port": 0 },
        { "name": "big", "port": 70000 },
        { "name": "less", "port": -1 },
        { "name": "odd", "port": 1, "protocol": "ICMP" },
        { "name": "dns", "port": 53, "protocol": "UDP", "nodePort": 99999 },
        { "name": "default", "port": 81, "protocol": null },
        null,
    ]);
    let (service, event) = put(with(plain(), "/spec/ports", ports));
    let kept: Vec<_> = service
        .ports
        .iter()
        .map(|p| (&*p.name, p.port.get(), p.protocol))
        .collect();
    assert_eq!(
        kept,
        [("dns", 53, Protocol::Udp), ("default", 81, Protocol::Tcp)]
    );
    assert_eq!(service.ports[0].node_port, None);
    assert_eq!(
        issues(&event),
        [
            "spec.ports[0].port: 0 is not a port number; the port is left out",
            "spec.ports[1].port: 70000 is not a port number; the port is left out",
            "spec.ports[2].port: -1 is not a port number; the port is left out",
            "spec.ports[3].protocol: \"ICMP\" is not a protocol; the port is left out",
            "spec.ports[4].nodePort: 99999 is not a port number; there is no node port",
            "spec.ports[6].port: 0 is not a port number; the port is left out",
        ]
    );
}

#[test]
fn a_later_port_replaces_an_earlier_one_of_its_name_and_protocol() {
    let ports = json!([
        { "name": "dns", "port": 53, "protocol": "UDP" },
        { "name": "dns", "port": 53, "protocol": "TCP" },
        { "name": "dns", "port": 54, "protocol": "UDP" },
        { "name": "dns", "port": 55, "protocol": "UDP" },
    ]);
    let (service, event) = put(with(plain(), "/spec/ports", ports));
    let kept: Vec<_> = service
        .ports
        .iter()
        .map(|p| (p.port.get(), p.protocol))
        .collect();
    assert_eq!(kept, [(55, Protocol::Udp), (53, Protocol::Tcp)]);
    assert_eq!(
        issues(&event),
        [
            "spec.ports[2].name: same name and protocol as spec.ports[0], which it replaces",
            "spec.ports[3].name: same name and protocol as spec.ports[2], which it replaces",
        ]
    );
}

#[test]
fn core_082_only_addresses_that_arrive_unchanged_are_load_balancer_ips() {
    let ingress = json!({ "ingress": [
        { "ip": "203.0.113.1" },
        { "ip": "203.0.113.2", "ipMode": "VIP" },
        { "ip": "203.0.113.3", "ipMode": "Proxy" },
        { "hostname": "lb.example" },
        { "ip": "2001:db8::1" },
        { "ip": "lb.example" },
        { "ip": "203.0.113.4", "ipMode": "Magic" },
    ]});
    let (service, event) = put(with(plain(), "/status/loadBalancer", ingress));
    // The IPv6 one is kept, but the core finds no IPv6 cluster IP to go with it.
    assert_eq!(
        texts(&service.load_balancer_ips),
        ["203.0.113.1", "203.0.113.2", "2001:db8::1"]
    );
    assert_eq!(
        fields(&event),
        [
            "status.loadBalancer.ingress[4].ip",
            "status.loadBalancer.ingress[5].ip",
            "status.loadBalancer.ingress[6].ipMode",
        ]
    );
    assert_eq!(
        severities(&event),
        [Severity::Note, Severity::Warning, Severity::Warning]
    );
}

#[test]
fn core_083_source_ranges_are_trimmed_and_bad_ones_dropped() {
    let ranges = json!([
        " 10.1.2.3/8 ",
        "nowhere",
        "fd00::/8\t",
        "10.0.0.1",
        "0.0.0.0/0"
    ]);
    let (service, event) = put(with(plain(), "/spec/loadBalancerSourceRanges", ranges));
    let kept: Vec<String> = service
        .source_ranges
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(kept, ["10.0.0.0/8", "fd00::/8", "0.0.0.0/0"]);
    let bad = [
        "spec.loadBalancerSourceRanges[1]",
        "spec.loadBalancerSourceRanges[3]",
    ];
    assert_eq!(fields(&event), bad);
}

#[test]
fn ranges_of_one_family_warn_that_the_other_is_open() {
    let ips = json!({ "ingress": [{ "ip": "203.0.113.1" }, { "ip": "2001:db8::1" }] });
    let balanced = with(dual(), "/status/loadBalancer", ips);
    let ranged = |ranges| with(balanced.clone(), "/spec/loadBalancerSourceRanges", ranges);
    assert_eq!(
        issues(&event(ranged(json!(["10.0.0.0/8"])))),
        [
            "spec.loadBalancerSourceRanges: no IPv6 network, so the IPv6 load balancer address is \
          open to everyone"
        ]
    );
    // Nothing readable is left, and that means no restriction at all.
    assert_eq!(fields(&event(ranged(json!(["bad"])))).len(), 3);
    for fine in [
        json!([]),
        json!(["10.0.0.0/8", "fd00::/8"]),
        json!(["0.0.0.0/0"]),
    ] {
        assert_eq!(fields(&event(ranged(fine))), Vec::<String>::new());
    }
    // Without an IPv6 address to open there is nothing to warn of.
    let one = with(
        plain(),
        "/spec/loadBalancerSourceRanges",
        json!(["10.0.0.0/8"]),
    );
    assert_eq!(fields(&event(one)), Vec::<String>::new());
}

#[test]
fn external_ips_keep_what_can_be_read() {
    let ips = json!(["198.51.100.1", "", "  ", "bad", "2001:db8::5", "010.0.0.1"]);
    let (service, event) = put(with(plain(), "/spec/externalIPs", ips));
    assert_eq!(
        texts(&service.external_ips),
        ["198.51.100.1", "2001:db8::5", "10.0.0.1"]
    );
    assert_eq!(
        issues(&event),
        [
            "spec.externalIPs[3]: \"bad\" is not an address; it is left out",
            "spec.externalIPs[4]: the Service has no IPv6 cluster IP, so 2001:db8::5 does not \
             answer",
        ]
    );
    assert_eq!(severities(&event), [Severity::Warning, Severity::Note]);
}

#[test]
fn core_091_cluster_ips_are_canonical() {
    let old = with(plain(), "/spec/clusterIPs", json!(["010.0.0.1"]));
    assert_eq!(put(old).0.cluster_ips.v4, Some("10.0.0.1".parse().unwrap()));
    let six = with(dual(), "/spec/clusterIPs/1", json!("FD00:30:0:0::01"));
    let ip = put(six).0.cluster_ips[Family::V6].unwrap();
    assert_eq!(ip.to_string(), "fd00:30::1");
}

#[test]
fn a_scheduler_is_one_of_linux_or_none() {
    let asking = |name: &str| {
        let annotations = json!({ "ferrule.dev/ipvs-scheduler": name, "other": "x" });
        let (service, event) = put(with(plain(), "/metadata/annotations", annotations));
        (
            service.scheduler.as_deref().map(str::to_owned),
            fields(&event),
        )
    };
    assert_eq!(asking("mh"), (Some("mh".to_owned()), vec![]));
    let field = "metadata.annotations[ferrule.dev/ipvs-scheduler]".to_owned();
    assert_eq!(asking("MH; rm -r"), (None, vec![field]));
    assert_eq!(put(plain()).0.scheduler, None);
}

#[test]
fn only_version_2_of_the_proxy_protocol_is_spoken() {
    let asking = |version: &str| {
        let annotations = json!({ "ferrule.dev/proxy-protocol": version });
        let (service, event) = put(with(plain(), "/metadata/annotations", annotations));
        (service.proxy_header, fields(&event))
    };
    assert_eq!(asking("v2"), (true, vec![]));
    let field = "metadata.annotations[ferrule.dev/proxy-protocol]".to_owned();
    assert_eq!(asking("v1"), (false, vec![field.clone()]));
    assert_eq!(asking(""), (false, vec![field]));
    assert!(!put(plain()).0.proxy_header);
}

#[test]
fn affinity_lasts_as_asked_or_three_hours() {
    let sticky = with(plain(), "/spec/sessionAffinity", json!("ClientIP"));
    let lasting = |seconds| {
        let config = json!({ "clientIP": { "timeoutSeconds": seconds } });
        let (service, event) = put(with(sticky.clone(), "/spec/sessionAffinityConfig", config));
        (service.affinity_seconds.unwrap().get(), severities(&event))
    };
    assert_eq!(lasting(json!(1)), (1, vec![]));
    assert_eq!(lasting(json!(86_400)), (86_400, vec![]));
    assert_eq!(lasting(json!(null)), (10_800, vec![Severity::Note]));
    for odd in [0, -5, 86_401, i64::MAX] {
        assert_eq!(lasting(json!(odd)), (10_800, vec![Severity::Warning]));
    }
    let (service, event) = put(sticky);
    assert_eq!(service.affinity_seconds.map(u32::from), Some(10_800));
    assert_eq!(
        fields(&event),
        ["spec.sessionAffinityConfig.clientIP.timeoutSeconds"]
    );
}

#[test]
fn unknown_words_mean_the_default() {
    for field in [
        "type",
        "internalTrafficPolicy",
        "externalTrafficPolicy",
        "sessionAffinity",
    ] {
        let (service, event) = put(with(plain(), &format!("/spec/{field}"), json!("Odd")));
        assert_eq!(service, put(plain()).0);
        assert_eq!(fields(&event), [format!("spec.{field}")]);
        assert_eq!(severities(&event), [Severity::Warning]);
    }
}

#[test]
fn health_check_ports_are_checked() {
    let local = with(plain(), "/spec/externalTrafficPolicy", json!("Local"));
    let local = with(local, "/spec/type", json!("LoadBalancer"));
    let checked = |number| {
        let (service, event) = put(with(local.clone(), "/spec/healthCheckNodePort", number));
        (
            service
                .health_check_field
                .map(ferrule_core::model::Port::get),
            severities(&event),
        )
    };
    assert_eq!(checked(json!(30_000)), (Some(30_000), vec![]));
    assert_eq!(checked(json!(0)), (None, vec![Severity::Note]));
    assert_eq!(checked(json!(-1)), (None, vec![Severity::Warning]));
    assert_eq!(checked(json!(65_536)), (None, vec![Severity::Warning]));
}

#[test]
fn creation_is_in_seconds_and_unknown_when_unreadable() {
    let created = |text| {
        put(with(plain(), "/metadata/creationTimestamp", text))
            .0
            .created
    };
    assert_eq!(created(json!("2025-01-02T03:04:05Z")), 1_735_787_045);
    assert_eq!(created(json!("yesterday")), 0);
}
