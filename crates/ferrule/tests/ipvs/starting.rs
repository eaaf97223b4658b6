//! What a start needs, makes and says.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ferrule_testbed::in_namespace;

use crate::cluster::{IPVS, installed};
use crate::support::*;

const SETTINGS: [&str; 4] = [
    "vs/conntrack",
    "vs/expire_nodest_conn",
    "vs/expire_quiescent_template",
    "ip_forward",
];

fn setting(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    text.unwrap().trim().to_owned()
}

/// Where the search path finds a program.
fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.exists()).unwrap()
}

#[test]
fn ipvs_080_the_program_tells_its_mode() {
    in_namespace(|| {
        let proxy = Proxy::with_rules(&examples(), &[IPVS]);
        proxy.ready();
        let mode = get(proxy.metrics, "/proxyMode").unwrap();
        assert_eq!(body(&mode), "ipvs");
        proxy.wait_for(proxy.health, "/healthz", "200");
        assert!(!proxy.log().contains("panicked"), "{}", proxy.log());
        assert!(!proxy.log().contains("Failed to"), "{}", proxy.log());
    });
}

#[test]
fn ipvs_010_init_only_makes_settings_and_nothing_else() {
    in_namespace(|| {
        let words = [
            "--init-only",
            IPVS,
            "--ipvs-strict-arp",
            "--ipvs-tcpfin-timeout=60s",
        ];
        let (code, _, err) = fails(&[&words[..], &UNTOUCHED].concat());
        assert_eq!(code, Some(0), "{err}");
        for name in SETTINGS {
            assert_eq!(setting(name), "1", "{name}");
        }
        assert_eq!(setting("conf/all/arp_ignore"), "1");
        assert_eq!(setting("conf/all/arp_announce"), "2");
        let timeouts = run("ipvsadm", &["-L", "--timeout"]);
        assert!(timeouts.contains(": 900 60 300"), "{timeouts}");
        assert_eq!(installed(), [""; 0]);
    });
}

#[test]
fn ipvs_002_no_program_for_sets_or_modules_is_needed() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        for stem in ["iptables", "ip6tables"] {
            for name in ["", "-save", "-restore"].map(|end| format!("{stem}{end}")) {
                symlink(find(&name), folder.path().join(name)).unwrap();
            }
        }
        let path = [("PATH", folder.path())];
        let proxy = Proxy::with_rules_and(&examples(), &[IPVS], &path);
        proxy.ready();
        let listed = run("ipset", &["list", "-n"]);
        assert_eq!(listed.lines().count(), 2 * 19, "{listed}");
    });
}

#[test]
fn ipvs_003_an_unknown_scheduler_ends_the_start_and_is_named() {
    in_namespace(|| {
        let examples = examples();
        let manifests = ["--manifests", examples.to_str().unwrap()];
        let words = [IPVS, "--ipvs-scheduler=nonsense"];
        let (code, _, err) = fails(&[&words[..], &manifests, &UNTOUCHED].concat());
        assert_eq!(code, Some(1), "{err}");
        let told = "this kernel has no scheduler nonsense (module ip_vs_nonsense)";
        assert!(err.contains(told), "{err}");
        assert_eq!(installed(), [""; 0]);
    });
}
