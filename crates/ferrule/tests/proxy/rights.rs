//! What the program needs rights for, and what an init container can do for it.

use std::process::Command;

use crate::support::*;

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Runs to its end: exit code and standard error.
fn run_through(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), err)
}

/// `ferrule proxy` where `/proc/sys` is read-only, as in a container that is not privileged.
fn in_a_container() -> Command {
    let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys \
                     && exec \"$0\" proxy \"$@\"";
    let mut command = Command::new("unshare");
    let program = env!("CARGO_BIN_EXE_ferrule");
    command.args(["--mount", "sh", "-c", read_only, program]);
    command.args(UNTOUCHED);
    command
}

fn route_localnet() -> String {
    let text = std::fs::read_to_string(ROUTE_LOCALNET).unwrap();
    text.trim().to_owned()
}

#[test]
fn core_016_init_only_prepares_and_writes_no_rules() {
    in_namespace(|| {
        let mut arguments = vec!["--init-only", NFTABLES];
        arguments.extend(UNTOUCHED);
        let (code, _, err) = fails(&arguments);
        assert_eq!(code, Some(0), "{err}");
        assert!(
            err.contains("System initialized and --init-only specified"),
            "{err}"
        );
        assert_eq!(ruleset(), "");
    });
}

#[test]
fn core_049_init_only_routes_localhost_where_node_ports_answer_on_it() {
    for (extra, wanted) in [
        ([IPTABLES, "--nodeport-addresses="], "1"),
        ([IPTABLES, "--nodeport-addresses=localhost"], "1"),
        ([IPTABLES, "--nodeport-addresses=192.0.2.0/24"], "0"),
        ([IPTABLES, "--nodeport-addresses=primary"], "0"),
        ([IPTABLES, "--iptables-localhost-nodeports=false"], "0"),
        ([NFTABLES, "--nodeport-addresses=localhost"], "0"),
    ] {
        in_namespace(|| {
            let mut arguments = vec!["--init-only"];
            arguments.extend(extra);
            arguments.extend(UNTOUCHED);
            let (code, _, err) = fails(&arguments);
            assert_eq!(code, Some(0), "{err}");
            assert_eq!(route_localnet(), wanted, "{extra:?}");
            assert_eq!(ruleset(), "", "{extra:?}");
        });
    }
}

#[test]
fn a_sysctl_that_cannot_be_written_ends_the_start_and_the_error_says_what_to_do() {
    in_namespace(|| {
        let manifests = examples();
        for errand in ["--init-only", "--hostname-override=node-a"] {
            let mut command = in_a_container();
            command.args([IPTABLES, errand, "--manifests"]);
            command.arg(&manifests);
            let (code, err) = run_through(command);
            assert_eq!(code, Some(1), "{err}");
            let what = "cannot set net.ipv4.conf.all.route_localnet to 1 (present value: 0)";
            assert!(err.contains(what), "{err}");
            assert!(err.contains("init container with --init-only"), "{err}");
        }
        assert_eq!(ruleset(), "");
    });
}

#[test]
fn after_init_only_a_container_without_a_writable_proc_sys_programs_rules() {
    in_namespace(|| {
        let mut arguments = vec!["--init-only", IPTABLES];
        arguments.extend(UNTOUCHED);
        let (code, _, err) = fails(&arguments);
        assert_eq!(code, Some(0), "{err}");

        let (health, metrics) = (free_address(), free_address());
        let mut command = in_a_container();
        command
            .args([IPTABLES, "--hostname-override=node-a", "--manifests"])
            .arg(examples())
            .arg(format!("--healthz-bind-address={health}"))
            .arg(format!("--metrics-bind-address={metrics}"));
        let proxy = Proxy::spawn(command, health, metrics);
        proxy.ready();
        assert!(steps(&proxy) > 50);
    });
}

#[test]
fn without_the_right_to_change_rules_it_says_so_and_exits_1() {
    in_namespace(|| {
        for errand in ["--init-only", "--cleanup"] {
            let mut command = Command::new("setpriv");
            command
                .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
                .arg(env!("CARGO_BIN_EXE_ferrule"))
                .args(["proxy", NFTABLES, errand])
                .args(UNTOUCHED);
            let (code, err) = run_through(command);
            assert_eq!(code, Some(1), "{err}");
            assert!(err.contains("needs CAP_NET_ADMIN"), "{err}");
        }
    });
}
