//! What the programs of a node are told, and the objects of a cluster that has names.

use std::path::Path;

use serde_json::{Value, json};

use super::images;

/// The cluster IP at which pods ask for names.
const DNS: &str = "10.96.0.10";

/// containerd's configuration.
pub fn containerd(socket: &str, packages: &Path) -> String {
    let packages = packages.display();
    let pause = images::PAUSE;
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE nobody may become harder to kill.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{packages}/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{packages}/usr/sbin/runc"
SystemdCgroup = false
"#
    )
}

/// The kubelet's configuration.
pub fn kubelet(socket: &str, group: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "containerRuntimeEndpoint": format!("unix://{socket}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        "serializeImagePulls": false,
        // The machine's disk may be as full as it likes.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        // Tests wait for Pods, and many start at once.
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "logging": { "verbosity": 2 },
    })
}

/// The network of a node's pods: a bridge, and ports of the node that lead to pods.
pub fn network(pods4: &str, pods6: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": pods4 }], [{ "subnet": pods6 }]],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    })
}

/// What a proxy is told beside what all proxies of the lab are. Pace and timeouts are the defaults.
pub fn proxy(kubeconfig: &Path) -> Value {
    let pace = json!({ "minSyncPeriod": "1s", "syncPeriod": "30s" });
    json!({
        "clientConnection": { "kubeconfig": kubeconfig },
        "conntrack": { "tcpEstablishedTimeout": "24h", "tcpCloseWaitTimeout": "1h" },
        "iptables": pace,
        "nftables": pace,
    })
}

/// `CoreDNS`, and what it needs.
pub fn names() -> Value {
    let labels = json!({ "k8s-app": "kube-dns" });
    let meta = |name: &str| json!({ "name": name, "namespace": "kube-system" });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "coredns" },
        "rules": [
            { "apiGroups": [""], "resources": ["services", "pods", "namespaces"],
              "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
              "verbs": ["list", "watch"] },
        ] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding", "metadata": { "name": "coredns" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                     "name": "coredns" },
        "subjects": [{ "kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system" }],
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("coredns") },
        role,
        binding,
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("coredns"),
          "data": { "Corefile": COREFILE } },
        { "apiVersion": "v1", "kind": "Service", "metadata": meta("kube-dns"), "spec": {
            "clusterIP": DNS,
            "selector": labels,
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP" },
                { "name": "dns-tcp", "port": 53, "protocol": "TCP" },
            ],
        } },
        deployment(&meta("coredns"), &labels),
    ] })
}

const COREFILE: &str = ".:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        ttl 30
    }
    cache 30
    loadbalance
}
";

fn deployment(meta: &Value, labels: &Value) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
        "replicas": 2,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": {
            "serviceAccountName": "coredns",
            "dnsPolicy": "Default",
            "containers": [{
                "name": "coredns",
                "image": images::COREDNS,
                "args": ["-conf", "/etc/coredns/Corefile"],
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8181 },
                                    "periodSeconds": 1 },
                "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns" }],
            }],
            "volumes": [{ "name": "config", "configMap": { "name": "coredns" } }],
        } },
    } })
}
