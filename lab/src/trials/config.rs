//! `--write-config-to`: the same flags and files given to ferrule and kube-proxy, and what both
//! write compared byte for byte. No API server takes part.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};

use super::Stage;
use crate::os;
use crate::tools::Tools;

/// Flags, and below the kind what is in the file; without that there is no file.
type Case = (&'static [&'static str], Option<&'static str>);

const CASES: &[Case] = &[
    (&[], None),
    (&[], Some("")),
    (
        &[
            "--proxy-mode=nftables",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
            "--nodeport-addresses=primary",
            "--masquerade-all",
        ],
        None,
    ),
    (
        &[
            "--proxy-mode=ipvs",
            "--ipvs-scheduler=wrr",
            "--ipvs-strict-arp",
            "--ipvs-exclude-cidrs=10.0.0.0/8,192.168.0.0/16",
            "--ipvs-min-sync-period=5s",
            "--ipvs-sync-period=1m",
            "--ipvs-tcp-timeout=10s",
        ],
        None,
    ),
    (
        &[
            "--proxy-mode=iptables",
            "--iptables-min-sync-period=0s",
            "--iptables-sync-period=10s",
            "--iptables-masquerade-bit=12",
            "--iptables-localhost-nodeports=false",
        ],
        None,
    ),
    (
        &[
            "--conntrack-max-per-core=0",
            "--conntrack-min=5",
            "--conntrack-tcp-timeout-established=1h30m",
            "--conntrack-tcp-timeout-close-wait=0",
            "--conntrack-udp-timeout=250ms",
            "--conntrack-udp-timeout-stream=2m",
            "--conntrack-tcp-be-liberal",
        ],
        None,
    ),
    (&["--bind-address=::"], None),
    (
        &[
            "--healthz-bind-address=127.0.0.1:1234",
            "--metrics-bind-address=0.0.0.0:999",
            "--profiling",
            "--bind-address-hard-fail",
            "--show-hidden-metrics-for-version=1.35",
        ],
        None,
    ),
    (
        &[
            "--healthz-port=0",
            "--healthz-bind-address=",
            "--metrics-port=0",
        ],
        None,
    ),
    (
        &[
            "--kubeconfig=/etc/kubeconfig",
            "--kube-api-qps=7.5",
            "--kube-api-burst=20",
            "--kube-api-content-type=application/json",
            "--hostname-override=Node-A",
            "--config-sync-period=5m",
        ],
        None,
    ),
    (
        &["--feature-gates=WatchListClient=false,ContextualLogging=false"],
        None,
    ),
    (&["--feature-gates=NobodyKnowsThis=true"], None),
    (
        &["--v=4", "--vmodule=a=1,b=2", "--log-flush-frequency=9s"],
        None,
    ),
    (&["--v=2", "--logging-format=json"], None),
    (
        &[
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=veth",
            "--pod-bridge-interface=cbr0",
        ],
        None,
    ),
    (
        &[],
        Some(
            "bindAddress: '::'\nhealthzBindAddress: '::1'\nmetricsBindAddress: 10.0.0.1\n\
             oomScoreAdj: 0\nenableProfiling: true\nclusterCIDR: 10.0.0.0/8\n",
        ),
    ),
    (
        &["--v=5", "--hostname-override=X", "--proxy-mode=ipvs"],
        Some(
            "mode: nftables\nnftables:\n  masqueradeAll: true\n  masqueradeBit: 3\n  \
             syncPeriod: 1m\n  minSyncPeriod: 2s\niptables:\n  masqueradeBit: 5\n  \
             localhostNodePorts: false\nnodePortAddresses: [10.0.0.0/8]\n",
        ),
    ),
    (
        &[],
        Some(
            "mode: ipvs\nipvs:\n  scheduler: lc\n  excludeCIDRs: [10.0.0.0/8]\n  tcpTimeout: 3s\n  \
             udpTimeout: 100ms\nconfigSyncPeriod: 0s\nportRange: 1-2\n",
        ),
    ),
    (
        &[],
        Some(
            "clientConnection:\n  kubeconfig: /k\n  qps: 1.25\n  burst: 3\n  \
             acceptContentTypes: application/json\ndetectLocalMode: BridgeInterface\n\
             detectLocal:\n  bridgeInterface: br0\n  interfaceNamePrefix: x\n\
             hostnameOverride: ABC\nwindowsRunAsService: true\nwinkernel:\n  networkName: n\n  \
             sourceVip: v\n  enableDSR: true\n  rootHnsEndpointName: r\n  \
             forwardHealthCheckVip: true\n",
        ),
    ),
    (
        &["--v=3"],
        Some(
            "featureGates:\n  WatchListClient: false\nlogging:\n  flushFrequency: 7s\n  \
             verbosity: 2\n  vmodule:\n  - filePattern: x\n    verbosity: 3\n",
        ),
    ),
    (
        &[],
        Some("conntrack:\n  min: 1\n  maxPerCore: 0\n  tcpBeLiberal: true\n  udpTimeout: 1.5s\n"),
    ),
    (&[], Some("mode: carrier-pigeon\n")),
    (&[], Some("iptables:\n  syncPeriod: soon\n")),
    (&[], Some("nobodyKnowsThis: true\nbindAddress: 10.0.0.1\n")),
];

const KIND: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Every case, and kube-proxy reading what ferrule wrote.
pub fn written(stage: &mut Stage<'_>) -> Result<()> {
    let folder = stage.folder.join("configuration");
    std::fs::create_dir_all(&folder)?;
    let tools = &stage.lab.tools;
    let mut wrong = String::new();
    for (number, (flags, file)) in CASES.iter().enumerate() {
        let mut flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        if let Some(text) = file {
            let path = folder.join(format!("{number}.yaml"));
            std::fs::write(&path, format!("{KIND}{text}"))?;
            flags.insert(0, format!("--config={}", path.display()));
        }
        let path = |name: &str| folder.join(format!("{number}.{name}"));
        let ours = write(tools, "ferrule", &flags, &path("ferrule"))?;
        let theirs = write(tools, "kube-proxy", &flags, &path("kube-proxy"))?;
        if ours != theirs {
            writeln!(
                wrong,
                "{flags:?}:\nferrule: {ours:?}\nkube-proxy: {theirs:?}"
            )?;
        }
        if ours.is_none() {
            continue;
        }
        // Reading changes a few values, the same ones in either file.
        let again = |name: &str| {
            let flags = [format!("--config={}", path(name).display())];
            write(tools, "kube-proxy", &flags, &path("again"))
        };
        let (ours, theirs) = (again("ferrule")?, again("kube-proxy")?);
        if ours.is_none() || ours != theirs {
            writeln!(
                wrong,
                "{flags:?}: kube-proxy reads ferrule's file as {ours:?}"
            )?;
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// What a program writes for these flags; none when it refuses them.
fn write(tools: &Tools, program: &str, flags: &[String], to: &Path) -> Result<Option<String>> {
    let mut command = os::command(tools.program(program));
    if program == "ferrule" {
        command.arg("proxy");
    }
    let _not_there = std::fs::remove_file(to);
    let status = command
        .args(flags)
        .arg(format!("--write-config-to={}", to.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        return Ok(None);
    }
    Ok(Some(std::fs::read_to_string(to)?))
}
