//! iptables that fails while everything else works.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ferrule_core::model::Family;
use ferrule_testbed::in_namespace;

use crate::cluster::{IPVS, servers, service};
use crate::support::*;

/// Programs that fail as long as a file is there.
struct Failing {
    folder: tempfile::TempDir,
}

impl Failing {
    fn new(program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let script = format!(
            "#!/bin/sh\n\
             if [ -e {stop} ]; then echo '{program}: line 3 failed' >&2; exit 1; fi\n\
             PATH={path} exec {program} \"$@\"\n",
            stop = folder.path().join("stop").display(),
        );
        let file = folder.path().join(program);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn stop(&self) {
        fs::write(self.folder.path().join("stop"), "").unwrap();
    }

    fn go_on(&self) {
        fs::remove_file(self.folder.path().join("stop")).unwrap();
    }

    /// The search path with these programs first.
    fn path(&self) -> PathBuf {
        let path = std::env::var("PATH").unwrap();
        format!("{}:{path}", self.folder.path().display()).into()
    }

    fn proxy(&self, manifests: &Path) -> Proxy {
        let quick = [IPVS, "--ipvs-min-sync-period=0s"];
        Proxy::with_rules_and(manifests, &quick, &[("PATH", &self.path())])
    }
}

/// A Service of each family with the last part of its address, and perhaps an external IP.
fn write(manifests: &Path, number: u8, external: bool) {
    let ips = [
        IpAddr::from([10, 96, 0, number]),
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 96, number.into()]),
    ];
    for (ip, outer) in ips.into_iter().zip(["192.0.2.77", "2001:db8::77"]) {
        let name = if ip.is_ipv4() { "four" } else { "six" };
        let mut text = service(name, ip);
        if external {
            text = format!("{text}  externalIPs: [\"{outer}\"]\n");
        }
        replace(&manifests.join(format!("{name}.yaml")), &text);
    }
}

fn failures(proxy: &Proxy) -> u64 {
    let name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} ";
    let line = proxy.metric(name);
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn addresses() -> String {
    run("ip", &["-o", "-4", "address", "show", "dev", "kube-ipvs0"])
}

#[test]
fn ipvs_071_after_a_failed_restore_nothing_is_removed_and_it_is_tried_again() {
    in_namespace(|| {
        let manifests = tempfile::tempdir().unwrap();
        write(manifests.path(), 1, false);
        let failing = Failing::new("iptables-restore");
        let proxy = failing.proxy(manifests.path());
        proxy.ready();
        assert_eq!(failures(&proxy), 0);
        failing.stop();
        // Another address instead of the first, and one that needs a rule.
        write(manifests.path(), 2, true);
        until(&format!("it fails\n{}", proxy.log()), || {
            (failures(&proxy) > 0).then_some(())
        });
        let there = addresses();
        assert!(there.contains("10.96.0.1/32"), "{there}");
        let listed = run("ipvsadm", &["-S", "-n"]);
        assert!(listed.contains("10.96.0.1:80"), "{listed}");
        failing.go_on();
        until(&format!("it is tried again\n{}", proxy.log()), || {
            let there = addresses();
            let moved = there.contains("10.96.0.2/32") && there.contains("192.0.2.77/32");
            (moved && !there.contains("10.96.0.1/32")).then_some(())
        });
        assert_eq!(servers(Family::V4), 2);
    });
}

#[test]
fn ipvs_073_ipvs_083_a_family_that_fails_does_not_hold_the_other() {
    for (program, well, ill) in [
        ("iptables-restore", Family::V6, Family::V4),
        ("ip6tables-restore", Family::V4, Family::V6),
    ] {
        in_namespace(|| {
            let manifests = tempfile::tempdir().unwrap();
            write(manifests.path(), 1, true);
            let failing = Failing::new(program);
            failing.stop();
            let proxy = failing.proxy(manifests.path());
            until(&format!("{well} is programmed\n{}", proxy.log()), || {
                (servers(well) == 2).then_some(())
            });
            assert_eq!(servers(ill), 0);
            failing.go_on();
            until(&format!("{ill} follows\n{}", proxy.log()), || {
                (servers(ill) == 2).then_some(())
            });
        });
    }
}
