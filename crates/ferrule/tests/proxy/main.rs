//! `ferrule proxy` as a node runs it: real sockets, real files, real signals. Only
//! [`rules`] and [`rights`] write to the kernel, to one of their own.

#![expect(clippy::disallowed_methods, reason = "these tests run the program")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commands;
mod flush;
mod iptables;
mod missing;
mod rights;
mod rules;
mod support;
mod sweep;
mod userspace;

use std::fs;
use std::io::BufRead as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use support::*;

#[test]
fn health_readiness_and_metrics_are_served_over_real_sockets() {
    let proxy = Proxy::start(&["--proxy-mode=nftables"]);
    proxy.ready();
    let answer = proxy.wait_for(proxy.health, "/healthz", "200");
    assert!(
        body(&answer).contains("\"nodeEligible\":true,\"healthy\":true"),
        "{answer}"
    );
    assert!(
        answer
            .to_ascii_lowercase()
            .contains("content-type: application/json"),
        "{answer}"
    );
    assert_eq!(status(&get(proxy.health, "/livez").unwrap()), "200");
    assert_eq!(status(&get(proxy.health, "/nowhere").unwrap()), "404");

    let mode = get(proxy.metrics, "/proxyMode").unwrap();
    assert_eq!(body(&mode), "nftables");
    let configz = get(proxy.metrics, "/configz").unwrap();
    assert!(
        body(&configz).starts_with("{\"kubeproxy.config.k8s.io\":{\"kind\":"),
        "{configz}"
    );
    assert!(
        body(&configz).contains("\"nodePortAddresses\":[\"primary\"]"),
        "{configz}"
    );
    assert_eq!(status(&get(proxy.metrics, "/healthz").unwrap()), "200");
    assert!(body(&get(proxy.metrics, "/statusz").unwrap()).contains("kube-proxy statusz"));
    assert!(body(&get(proxy.metrics, "/flagz").unwrap()).contains("kube-proxy flagz"));
    assert_eq!(status(&get(proxy.metrics, "/debug/pprof/").unwrap()), "404");
    let ports = "ferrule_desired_service_ports{ip_family=\"IPv4\"} 5";
    assert_eq!(proxy.metric(ports).as_deref(), Some(ports));
    assert!(
        proxy
            .metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{")
            .is_some()
    );
    assert!(
        proxy
            .metric("kubernetes_feature_enabled{name=\"NFTablesProxyMode\"")
            .is_some()
    );
}

#[test]
fn core_066_a_service_health_port_tells_the_number_of_local_endpoints() {
    // examples/ has shop/checkout with health port 32100 and one local endpoint on node-a.
    let proxy = Proxy::start(&["--nodeport-addresses=127.0.0.0/8"]);
    proxy.ready();
    let port = "127.0.0.1:32100".parse().unwrap();
    let answer = proxy.wait_for(port, "/any/path", "200");
    let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"checkout\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!(body(&answer), expected);
}

#[test]
fn core_055_signals_end_the_program_at_once_and_sigusr1_does_not() {
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut proxy = Proxy::start(&[]);
        proxy.ready();
        proxy.signal("USR1");
        assert_eq!(status(&get(proxy.health, "/livez").unwrap()), "200");
        proxy.signal(signal);
        assert_eq!(proxy.wait().code(), Some(code), "{signal}");
        let log = proxy.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[test]
fn core_055_sigterm_ends_it_as_the_first_process_of_a_container_too() {
    let container = || {
        let mut unshare = Command::new("unshare");
        let namespaces = ["--user", "--map-root-user", "--pid"];
        unshare
            .args(namespaces)
            .args(["--fork", "--kill-child", "--"]);
        unshare
    };
    let tried = container().arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        leave_out("a namespace of processes needs user namespaces, which are not allowed");
        return;
    }
    let health = free_address();
    let mut command = container();
    command
        .arg(env!("CARGO_BIN_EXE_ferrule"))
        .arg("proxy")
        .arg("--hostname-override=node-a")
        .arg(format!("--healthz-bind-address={health}"))
        .arg(format!("--metrics-bind-address={}", free_address()));
    let mut proxy = Proxy::spawn_dry(command, health, health);
    proxy.ready();
    // The one child of `unshare` is process 1 in there.
    let unshare = proxy.child.id();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    let inner = children.trim();
    assert!(!inner.is_empty() && !inner.contains(' '), "{children:?}");
    assert!(
        Command::new("kill")
            .args(["-s", "TERM", inner])
            .status()
            .unwrap()
            .success()
    );
    let ended = proxy.wait();
    assert!(
        ended.code() == Some(143) || ended.signal() == Some(15),
        "{ended:?}"
    );
}

/// A configuration file with these addresses, one of whose settings is `line`.
fn config(health: SocketAddr, metrics: SocketAddr, line: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         mode: nftables\nhealthzBindAddress: {health}\nmetricsBindAddress: {metrics}\n{line}\n"
    )
}

fn configz_has(proxy: &Proxy, text: &str) {
    until(&format!("/configz has {text}\n{}", proxy.log()), || {
        get(proxy.metrics, "/configz").filter(|answer| body(answer).contains(text))
    });
}

#[test]
fn a_changed_configuration_is_adopted_however_the_file_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (health, metrics) = (free_address(), free_address());
    let with = |minimum: &str| {
        config(
            health,
            metrics,
            &format!("nftables: {{minSyncPeriod: {minimum}}}"),
        )
    };
    // As a ConfigMap is mounted: the file is a link into a folder behind a link.
    let place = |name: &str, content: &str| {
        let version = folder.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("config.conf"), content).unwrap();
        symlink(name, folder.path().join("..data_tmp")).unwrap();
        fs::rename(
            folder.path().join("..data_tmp"),
            folder.path().join("..data"),
        )
        .unwrap();
    };
    place("..v1", &with("2s"));
    let file = folder.path().join("config.conf");
    symlink("..data/config.conf", &file).unwrap();
    let proxy = Proxy::with_config(&file, health, metrics);
    proxy.ready();
    configz_has(&proxy, "\"minSyncPeriod\":\"2s\"");

    place("..v2", &with("3s"));
    fs::remove_dir_all(folder.path().join("..v1")).unwrap();
    configz_has(&proxy, "\"minSyncPeriod\":\"3s\"");

    fs::write(folder.path().join("..v2/config.conf"), with("4s")).unwrap();
    configz_has(&proxy, "\"minSyncPeriod\":\"4s\"");

    let other = folder.path().join("other");
    fs::write(&other, with("5s")).unwrap();
    fs::rename(&other, &file).unwrap();
    configz_has(&proxy, "\"minSyncPeriod\":\"5s\"");

    // What cannot be used changes nothing, and says so.
    fs::write(&file, "kind: [").unwrap();
    until("the error is logged", || {
        proxy.log().contains("the running one stays").then_some(())
    });
    configz_has(&proxy, "\"minSyncPeriod\":\"5s\"");

    // The servers move to another port.
    let moved = free_address();
    let text = with("5s").replace(&health.to_string(), &moved.to_string());
    fs::write(&file, text).unwrap();
    proxy.wait_for(moved, "/livez", "200");
}

#[test]
fn core_033_a_change_that_needs_a_restart_ends_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let (health, metrics) = (free_address(), free_address());
    let file = folder.path().join("config.conf");
    fs::write(&file, config(health, metrics, "")).unwrap();
    let mut proxy = Proxy::with_config(&file, health, metrics);
    proxy.ready();
    // Touched and rewritten with the same words: nothing.
    fs::write(&file, config(health, metrics, "")).unwrap();
    fs::write(&file, config(health, metrics, "clusterCIDR: 10.0.0.0/8")).unwrap();
    assert_eq!(proxy.wait().code(), Some(1));
    let log = proxy.log();
    assert!(
        log.contains("content of the proxy server's configuration file was updated"),
        "{log}"
    );
    assert!(log.contains("clusterCIDR"), "the field is named: {log}");
}

#[test]
fn systemd_is_told_when_everything_is_programmed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(LONG)).unwrap();
    let (health, metrics) = (free_address(), free_address());
    let mut command = ferrule();
    command
        .env("NOTIFY_SOCKET", &socket)
        .arg("proxy")
        .arg("--hostname-override=node-a")
        .arg(format!("--healthz-bind-address={health}"))
        .arg(format!("--metrics-bind-address={metrics}"));
    let _proxy = Proxy::spawn_dry(command, health, metrics);
    let mut message = [0; 64];
    let length = listener.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
}

#[test]
fn core_065_a_port_in_use_is_fatal_only_with_hard_fail() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let metrics = format!("--metrics-bind-address={}", free_address());
    let health = format!("--healthz-bind-address={address}");
    let manifests = format!("--manifests={}", examples().display());
    let (code, _, log) = fails(&[
        "--dry-run",
        "--hostname-override=node-a",
        "--bind-address-hard-fail",
        "--admin-socket=",
        &health,
        &metrics,
        &manifests,
    ]);
    assert_eq!(code, Some(1));
    assert!(
        log.contains(&format!(
            "listen tcp {address}: bind: address already in use"
        )),
        "{log}"
    );

    let mut command = ferrule();
    let elsewhere = free_address();
    command
        .arg("proxy")
        .arg("--hostname-override=node-a")
        .arg(health)
        .arg(format!("--metrics-bind-address={elsewhere}"));
    let proxy = Proxy::spawn_dry(command, address, elsewhere);
    proxy.wait_for(elsewhere, "/healthz", "200");
    until("the failure is logged", || {
        proxy.log().contains("address already in use").then_some(())
    });
    drop(taken);
    proxy.wait_for(address, "/livez", "200");
}

#[test]
fn core_001_the_version_is_printed_before_anything_is_read() {
    let (code, out, err) = fails(&["--version", "--config=/nowhere"]);
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(0), "Kubernetes v1.36.4\n", "")
    );
}

#[test]
fn core_002_unknown_flags_and_arguments_exit_1_with_words_on_stderr_only() {
    let (code, out, err) = fails(&["--nope"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.starts_with("Usage:") && err.ends_with("Error: unknown flag: --nope\n"),
        "{err}"
    );
    let (code, out, err) = fails(&["foo"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(
        err,
        "Error: \"kube-proxy\" does not take any arguments, got [\"foo\"]\n"
    );
}

#[test]
fn started_as_kube_proxy_it_is_kube_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("kube-proxy");
    symlink(env!("CARGO_BIN_EXE_ferrule"), &link).unwrap();
    let output = Command::new(&link).arg("--version").output().unwrap();
    assert_eq!(output.stdout, b"Kubernetes v1.36.4\n");
}

#[test]
fn core_014_the_configuration_is_written_and_read_back_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1"), folder.path().join("2"));
    let write = |extra: &[&str], to: &Path| {
        let flag = format!("--write-config-to={}", to.display());
        let (code, out, _) = fails(&[extra, &[&flag, "--cleanup"]].concat());
        assert_eq!((code, out.as_str()), (Some(0), ""));
        fs::read_to_string(to).unwrap()
    };
    let text = write(
        &[
            "--proxy-mode=nftables",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
        ],
        &first,
    );
    assert!(text.contains("mode: nftables\n") && text.contains("nodePortAddresses:\n- primary\n"));
    let config = format!("--config={}", first.display());
    assert_eq!(write(&[&config], &second), text);
}

#[test]
fn what_is_wrong_at_the_start_is_told_and_exits_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        format!("--config={}", file.display())
    };
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let cases: [(Vec<String>, &str); 8] = [
        (
            vec!["--config=/nowhere".to_owned()],
            "open /nowhere: no such file or directory",
        ),
        (vec![with("kind: [")], "failed to decode"),
        (
            vec!["--proxy-mode=fancy".to_owned()],
            "KubeProxyConfiguration.Mode.ProxyMode",
        ),
        (
            vec!["--cluster-cidr=10.0.0.0".to_owned()],
            "DetectLocalConfiguration.ClusterCIDRs[0]",
        ),
        (
            vec!["--feature-gates=Nope=true".to_owned()],
            "unrecognized feature gate: Nope",
        ),
        (
            vec!["--kubeconfig=/nowhere".to_owned(), "--dry-run".to_owned()],
            "stat /nowhere: no such file or directory",
        ),
        (
            vec!["--dry-run".to_owned()],
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
        ),
        (
            vec!["--dry-run".to_owned(), "--manifests=/nowhere".to_owned()],
            "/nowhere: cannot be read",
        ),
    ];
    for (arguments, expected) in cases {
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let health = format!("--healthz-bind-address={}", free_address());
        let metrics = format!("--metrics-bind-address={}", free_address());
        arguments.extend([health.as_str(), metrics.as_str()]);
        let (code, _, log) = fails(&arguments);
        assert_eq!(code, Some(1), "{arguments:?}\n{log}");
        assert!(log.contains(expected), "{arguments:?}\n{log}");
    }
    // A type error names its place; an unknown field does not stop anything.
    let (_, _, log) = fails(&[&with(&format!("{head}oomScoreAdj: high\n"))]);
    assert!(
        log.contains("line 3") && log.contains("oomScoreAdj"),
        "{log}"
    );
    let config = with(&format!("{head}bogus: 1\n"));
    let out = format!("--write-config-to={}", folder.path().join("out").display());
    let (code, _, log) = fails(&[&config, &out]);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("unknown field \\\"bogus\\\""), "{log}");
}

#[test]
fn core_037_a_missing_node_does_not_hold_up_the_start() {
    let proxy = Proxy::start(&["--hostname-override=nobody"]);
    proxy.ready();
    assert_eq!(status(&get(proxy.health, "/livez").unwrap()), "200");
    // But load balancers are told to go elsewhere: the name may be wrong.
    assert_eq!(status(&get(proxy.health, "/healthz").unwrap()), "503");
}

#[test]
fn core_043_both_families_run_though_the_node_has_addresses_of_one() {
    let proxy = Proxy::start(&[]);
    proxy.ready();
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let families: &[&str] = if has_ipv6 {
        &["IPv4", "IPv6"]
    } else {
        &["IPv4"]
    };
    for family in families {
        let synced =
            format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}");
        assert!(proxy.metric(&synced).is_some(), "{family}");
    }
}

#[test]
fn https_proxy_leads_to_the_api_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (health, metrics) = (free_address(), free_address());
    let mut command = ferrule();
    for name in ["https_proxy", "no_proxy", "NO_PROXY"] {
        command.env_remove(name);
    }
    let way = format!("http://{}", listener.local_addr().unwrap());
    command.env("HTTPS_PROXY", way).args([
        "proxy",
        "--dry-run",
        "--hostname-override=node-a",
        "--master=https://192.0.2.1:6443",
        &format!("--healthz-bind-address={health}"),
        &format!("--metrics-bind-address={metrics}"),
    ]);
    let proxy = Proxy::spawn(command, health, metrics);
    let what = format!("the proxy is asked\n{}", proxy.log());
    let (client, _) = until(&what, || listener.accept().ok());
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    let mut first = String::new();
    std::io::BufReader::new(client)
        .read_line(&mut first)
        .unwrap();
    assert_eq!(first, "CONNECT 192.0.2.1:6443 HTTP/1.1\r\n");
    let log = proxy.log();
    assert!(log.contains("Using a proxy for the API server"), "{log}");
    assert!(log.contains("HTTPS_PROXY"), "{log}");
}
