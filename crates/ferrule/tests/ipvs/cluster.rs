//! A Service in manifests that change, and what the program makes of it in the kernel.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use ferrule_core::model::Family;
use ferrule_testbed::{Lab, Place, address};

use crate::support::*;

pub const IPVS: &str = "--proxy-mode=ipvs";

/// An endpoint: the number of a pod, and whether it is ready or shuts down.
pub type Endpoint = (u8, bool);

/// Manifests of one Service.
pub struct Cluster<'a> {
    lab: &'a Lab,
    folder: tempfile::TempDir,
}

impl<'a> Cluster<'a> {
    /// A Service with these endpoints, and nothing else.
    pub fn new(lab: &'a Lab, endpoints: &[Endpoint]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Self { lab, folder };
        let service = service("web", vip(lab));
        replace(&cluster.folder.path().join("service.yaml"), &service);
        cluster.endpoints(endpoints);
        cluster
    }

    /// The Service's endpoints from now on.
    pub fn endpoints(&self, endpoints: &[Endpoint]) {
        let mut text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web-1, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: {}\nports: [{{port: 8080}}]\nendpoints:\n",
            family(vip(self.lab))
        );
        for (number, ready) in endpoints {
            let ip = pod(self.lab, *number);
            writeln!(
                text,
                "- {{addresses: [\"{ip}\"], conditions: \
                 {{ready: {ready}, serving: true, terminating: {}}}}}",
                !ready
            )
            .unwrap();
        }
        replace(&self.folder.path().join("slice.yaml"), &text);
    }

    /// The program on the node of the lab, once it has programmed everything.
    pub fn proxy(&self, mode: &'static str) -> Proxy {
        let manifests = self.folder.path().to_owned();
        let pods = format!("--cluster-cidr={}", self.lab.pod_net());
        self.lab.node.run(move || {
            let quick = [
                "--ipvs-min-sync-period=0s",
                "--iptables-min-sync-period=0s",
                // As in every mode, where the addresses of NodePorts do not matter.
                "--iptables-sync-period=1s",
            ];
            let proxy = Proxy::with_rules(&manifests, &[&[mode, &pods], &quick[..]].concat());
            proxy.ready();
            proxy
        })
    }

    /// Destinations of the Service and their weights.
    pub fn weights(&self) -> Vec<(u8, String)> {
        let lab = self.lab;
        let server = SocketAddr::new(vip(lab), 80).to_string();
        let listed = lab.node.run(|| run("ipvsadm", &["-S", "-n"]));
        let lines = listed.lines().filter(|line| line.starts_with("-a "));
        let of_service = lines.filter(|line| line.contains(&format!(" {server} ")));
        let mut weights: Vec<_> = of_service
            .map(|line| {
                let number = [1, 2].into_iter().find(|number| {
                    let destination = SocketAddr::new(pod(lab, *number), 8080);
                    line.contains(&format!(" -r {destination} "))
                });
                let (_, weight) = line.split_once(" -w ").unwrap();
                (number.unwrap(), weight.trim().to_owned())
            })
            .collect();
        weights.sort();
        weights
    }

    /// Waits until destinations have these weights.
    pub fn until(&self, proxy: &Proxy, wanted: &[(u8, u8)]) {
        let wanted: Vec<_> = wanted.iter().map(|(n, w)| (*n, w.to_string())).collect();
        let mut last = Vec::new();
        until(&format!("{wanted:?}\n{}", proxy.log()), || {
            last = self.weights();
            (last == wanted).then_some(())
        });
    }
}

/// A Service with one port.
pub fn service(name: &str, ip: IpAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\n\
         spec:\n  clusterIP: \"{ip}\"\n  clusterIPs: [\"{ip}\"]\n  ipFamilies: [{}]\n  \
         ports: [{{port: 80}}]\n",
        family(ip)
    )
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

pub fn vip(lab: &Lab) -> IpAddr {
    address(lab.family, 96, 1)
}

fn pod(lab: &Lab, number: u8) -> IpAddr {
    if number == 1 {
        lab.here_ip()
    } else {
        lab.far_ip()
    }
}

/// Connects to the Service; also the number of the pod that answers.
pub fn connect(lab: &Lab, place: &Place) -> (TcpStream, u8) {
    let to = vip(lab);
    let mut stream = place.run(move || TcpStream::connect((to, 80)).unwrap());
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    (stream, line[0] - b'0')
}

/// Whether the other side still answers.
pub fn goes_on(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"still there")?;
    let mut answer = [0; 11];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"still there");
    Ok(())
}

/// Everything of this mode that is in the kernel, and chains of iptables but for kubelet's.
pub fn installed() -> Vec<String> {
    let servers = run("ipvsadm", &["-S", "-n"]);
    let sets = run("ipset", &["list", "-n"]);
    let links = run("ip", &["-o", "link"]);
    let links = links.lines().filter(|line| line.contains("kube-ipvs0"));
    let rules = ["iptables-save", "ip6tables-save"].map(|save| run(save, &[]));
    let rules = rules.iter().flat_map(|text| text.lines());
    let ours = rules.filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
    let all = servers.lines().chain(sets.lines()).chain(links).chain(ours);
    all.map(str::to_owned).collect()
}

/// What of it is only this mode's.
pub fn of_mode() -> Vec<String> {
    let chains = ["KUBE-IPVS", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"];
    let rules = |line: &String| line.starts_with(':') || line.starts_with("-A ");
    let mut all = installed();
    // Servers are listed as commands, too.
    all.retain(|line| {
        let server = line.starts_with("-A -") || line.starts_with("-a ");
        server || !rules(line) || chains.iter().any(|chain| line.contains(chain))
    });
    all
}

/// Adresses of virtual servers in this family.
pub fn servers(family: Family) -> usize {
    let listed = run("ipvsadm", &["-S", "-n"]);
    let servers = listed.lines().filter(|line| line.starts_with("-A "));
    let of_family = |line: &&str| line.contains('[') == (family == Family::V6);
    servers.filter(of_family).count()
}
