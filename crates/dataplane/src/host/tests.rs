//! Kernel settings on a made-up machine.

use std::fs;

use super::*;

/// A machine with these files.
fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let host = Host::new(root.path());
    (root, host)
}

const NETFILTER: [(&str, &str); 7] = [
    ("proc/sys/net/netfilter/nf_conntrack_max", "65536\n"),
    (
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        "432000\n",
    ),
    (
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
        "60\n",
    ),
    ("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "0\n"),
    ("proc/sys/net/netfilter/nf_conntrack_udp_timeout", "30\n"),
    (
        "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
        "120\n",
    ),
    ("sys/module/nf_conntrack/parameters/hashsize", "16384\n"),
];

fn value(root: &tempfile::TempDir, path: &str) -> String {
    fs::read_to_string(root.path().join(path))
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn core_046_the_connection_table_grows_with_the_processors_up_to_a_ceiling() {
    assert_eq!(conntrack_max(32768, 131_072, 2), 131_072);
    assert_eq!(conntrack_max(32768, 131_072, 8), 262_144);
    assert_eq!(conntrack_max(32768, 131_072, 64), 1_048_576);
    assert_eq!(conntrack_max(0, 131_072, 64), 0);
    assert_eq!(
        conntrack_max(32768, 2_000_000, 64),
        1_048_576,
        "the ceiling wins"
    );
    assert_eq!(conntrack_max(32768, 2_000_000, 2), 2_000_000);
}

#[test]
fn releases_begin_with_a_version() {
    for (release, version) in [
        ("6.1.0-18-amd64\n", Some(Version(6, 1))),
        ("5.9", Some(Version(5, 9))),
        ("4.18-rc1", Some(Version(4, 18))),
        ("linux", None),
        ("6", None),
    ] {
        assert_eq!(Version::parse(release), version, "{release}");
    }
    let (_root, host) = machine(&[("proc/sys/kernel/osrelease", "5.10.0\n")]);
    assert_eq!(host.kernel_version().unwrap(), Version(5, 10));
}

#[test]
fn core_047_buckets_are_raised_never_lowered_and_failure_is_a_warning() {
    let wanted = Conntrack {
        max_per_core: 1,
        min: 131_072,
        ..Conntrack::default()
    };
    let (root, host) = machine(&NETFILTER);
    assert!(host.set_conntrack(&wanted).unwrap().is_empty());
    assert_eq!(value(&root, NETFILTER[0].0), "131072");
    assert_eq!(value(&root, NETFILTER[6].0), "32768");

    let (root, host) = machine(&[NETFILTER[0], (NETFILTER[6].0, "1000000")]);
    assert!(host.set_conntrack(&wanted).unwrap().is_empty());
    assert_eq!(value(&root, NETFILTER[6].0), "1000000");

    // kube-proxy refuses to start here.
    let (_root, host) = machine(&NETFILTER[..1]);
    let warnings = host.set_conntrack(&wanted).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].to_string().contains("hashsize to 32768"),
        "{}",
        warnings[0]
    );
}

#[test]
fn core_048_zero_leaves_a_setting_and_equal_values_are_not_written() {
    let (root, host) = machine(&NETFILTER);
    host.set_conntrack(&Conntrack::default()).unwrap();
    for (path, content) in NETFILTER {
        assert_eq!(value(&root, path), content.trim());
    }
    let wanted = Conntrack {
        tcp_established: Duration::from_millis(86_400_900),
        tcp_close_wait: Duration::from_mins(1),
        tcp_be_liberal: true,
        udp: Duration::from_secs(10),
        udp_stream: Duration::from_millis(500),
        ..Conntrack::default()
    };
    // The file that holds the right value already may be read-only.
    let equal = root.path().join(NETFILTER[2].0);
    let before = fs::metadata(&equal).unwrap().modified().unwrap();
    host.set_conntrack(&wanted).unwrap();
    assert_eq!(fs::metadata(&equal).unwrap().modified().unwrap(), before);
    assert_eq!(value(&root, NETFILTER[1].0), "86400", "whole seconds");
    assert_eq!(value(&root, NETFILTER[3].0), "1");
    assert_eq!(value(&root, NETFILTER[4].0), "10");
    assert_eq!(value(&root, NETFILTER[5].0), "1", "0 would mean at once");
    // Liberal is never switched off again.
    host.set_conntrack(&Conntrack::default()).unwrap();
    assert_eq!(value(&root, NETFILTER[3].0), "1");
}

#[test]
fn a_setting_that_cannot_be_written_says_which_and_what_to_do() {
    let (_root, host) = machine(&[]);
    let wanted = Conntrack {
        max_per_core: 1,
        min: 131_072,
        ..Conntrack::default()
    };
    let error = host.set_conntrack(&wanted).unwrap_err().to_string();
    assert!(
        error.contains("net.netfilter.nf_conntrack_max to 131072 (present value: unknown)"),
        "{error}"
    );
    assert!(error.contains("--init-only"), "{error}");
}

#[test]
fn core_041_ipv6_needs_the_kernel_and_can_be_switched_off() {
    let inet6 = ("proc/net/if_inet6", "");
    let switch = |value| ("proc/sys/net/ipv6/conf/all/disable_ipv6", value);
    let check = |files: &[_]| machine(files).1.check(Family::V6);
    assert_eq!(check(&[inet6, switch("0\n")]), Ok(()));
    assert_eq!(check(&[inet6]), Ok(()), "an unreadable switch counts as on");
    assert_eq!(check(&[inet6, switch("1\n")]), Err(NoFamily::Disabled));
    assert_eq!(check(&[switch("0\n")]), Err(NoFamily::Missing));
    assert_eq!(machine(&[]).1.check(Family::V4), Ok(()));
}

#[test]
fn processors_are_counted_from_the_kernels_list() {
    for (list, count) in [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7)] {
        assert_eq!(count_processors(list), Some(count));
    }
    for bad in ["", "a", "3-1", "0-", "1,,2", "0-18446744073709551615"] {
        assert_eq!(count_processors(bad), None, "{bad}");
    }
    let (_root, host) = machine(&[("sys/devices/system/cpu/online", "0-7\n")]);
    assert_eq!(host.processors(), 8);
    assert!(machine(&[]).1.processors() > 0);
}

#[test]
fn the_oom_score_is_written_for_this_process() {
    let (root, host) = machine(&[("proc/self/oom_score_adj", "0")]);
    host.set_oom_score(-999).unwrap();
    assert_eq!(value(&root, "proc/self/oom_score_adj"), "-999");
    assert!(machine(&[]).1.set_oom_score(0).is_err());
}
