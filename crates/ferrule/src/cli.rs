//! The command line of the verbs that inspect: `desired`, `render`, `explain`, `verify` and `support-bundle`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ferrule_core::facts::NodePortAddresses;
use ferrule_core::model::{Family, parse_cidr};
use ipnet::IpNet;

use crate::admin::SOCKET;
use crate::explain::target::{self, Target};
use crate::modes::{self, Mode};

/// Makes every Kubernetes Service address work on this node.
#[derive(Debug, Parser)]
#[command(name = "ferrule", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run on a node: kube-proxy's flags, see `ferrule proxy --help`
    // Taken out of the arguments before they come here; listed so that help knows it.
    #[command(disable_help_flag = true)]
    Proxy,
    /// Print what every Service address should do on one node
    ///
    /// Reads the cluster from files, changes nothing, and needs no privileges. Parts of the input
    /// that make no sense are left out and reported on standard error.
    Desired(DesiredArgs),
    /// Print what would be programmed into the kernel of one node
    ///
    /// For mode nftables this is a file for `nft -f`, which replaces the table of kube-proxy.
    /// Reads the cluster from files, changes nothing, and needs no privileges.
    Render(RenderArgs),
    /// Say what an address or a Service does on this node, and why
    ///
    /// Asks the running proxy, or reads the cluster from files with --manifests. Changes nothing.
    /// Exit code 0 for an answer, 3 if there is no such Service or address, 4 if it exists and
    /// cannot work.
    Explain(ExplainArgs),
    /// Compare the kernel of this node with what is desired, and print every difference
    ///
    /// Reads the cluster once, from files or from an API server, and the kernel's rules, also those
    /// that kube-proxy wrote in modes iptables and nftables. Writes nothing. A difference is printed
    /// on one line: what is missing, unexpected or different, in the words of the mode's own tool,
    /// and the Service that it belongs to. The exit code is 0 if there is none and 1 if there are
    /// some; 2 if the command line, a file or the configuration makes no sense, 3 if the kernel's
    /// rules cannot be read, 4 if the API server does not answer.
    Verify(VerifyArgs),
    /// Collect what somebody needs who helps from afar, in one tar file
    ///
    /// Asks the running proxy for its configuration, recent syncs, issues, decisions, metrics and last log
    /// lines, and the kernel for rules, tracked flows in numbers, and what it can do. Tokens, keys,
    /// passwords and annotations are left out. Changes nothing; without a proxy, or without the rights to
    /// read the kernel, the rest is collected and the file says what is missing.
    SupportBundle(BundleArgs),
    /// Write man pages and shell completions into a folder
    #[cfg(feature = "manual")]
    #[command(hide = true)]
    Manual {
        /// Made if it is missing
        folder: PathBuf,
    },
}

/// The cluster and the settings that all of these verbs read.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// File or folder of YAML or JSON: Services, EndpointSlices, Nodes, ServiceCIDRs, Lists
    #[arg(long, value_name = "PATH")]
    pub manifests: PathBuf,

    /// Name of the node to decide for
    #[arg(long, value_name = "NAME")]
    pub node: String,

    /// Only this address family
    #[arg(long)]
    pub family: Option<FamilyArg>,

    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// The settings of the proxy, from its file and from flags.
#[derive(Args, Clone, Debug)]
pub struct SettingsArgs {
    /// Read the settings from this file, the one that `ferrule proxy --config` takes; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Networks of the pods; traffic from elsewhere to cluster IPs is masqueraded
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = cidr)]
    pub cluster_cidr: Vec<IpNet>,

    /// Masquerade all traffic to cluster IPs
    #[arg(long)]
    pub masquerade_all: bool,

    /// Node addresses that serve NodePorts: networks, or the words primary, localhost, all
    /// [default: all, in mode nftables primary]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = node_port_address)]
    pub nodeport_addresses: Vec<String>,
}

/// Arguments of `ferrule desired`.
#[derive(Debug, Args)]
pub struct DesiredArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Table, or a sorted array with one object per address
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Keep running and print what changes whenever the files change
    #[arg(short, long)]
    pub watch: bool,

    /// Only this Service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub service: Option<String>,
}

/// Arguments of `ferrule render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// How Services are programmed
    #[arg(long, required_unless_present = "config", value_parser = mode_parser())]
    pub mode: Option<&'static Mode>,

    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Bit of the packet mark that asks for masquerading, in modes iptables and ipvs; for mode
    /// nftables the configuration file has it
    #[arg(long, value_name = "BIT", value_parser = clap::value_parser!(i32).range(0..32))]
    pub iptables_masquerade_bit: Option<i32>,
}

/// Arguments of `ferrule verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// File or folder of YAML or JSON with the cluster; otherwise an API server is asked
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,

    /// Name of this node's Node [default: the name of this machine]
    #[arg(long, value_name = "NAME", alias = "hostname-override")]
    pub node: Option<String>,

    /// Only this address family
    #[arg(long)]
    pub family: Option<FamilyArg>,

    /// How Services are programmed
    #[arg(long, visible_alias = "mode", value_parser = mode_parser())]
    pub proxy_mode: Option<&'static Mode>,

    /// How to reach the API server
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub kubeconfig: Option<String>,

    /// Address of the API server, instead of the one in the kubeconfig
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,

    /// Seconds that the API server may take to send all objects
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,

    #[command(flatten)]
    pub settings: SettingsArgs,

    /// Bit of the packet mark that asks for masquerading, in modes iptables and ipvs; for mode
    /// nftables the configuration file has it
    #[arg(long, value_name = "BIT", value_parser = clap::value_parser!(i32).range(0..32))]
    pub iptables_masquerade_bit: Option<i32>,

    /// A line for each difference, or JSON
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Repeat until interrupted, and print only what changes
    #[arg(short, long)]
    pub watch: bool,

    /// Seconds between two comparisons of --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub every: u64,
}

impl VerifyArgs {
    /// What it has in common with the verbs that only read files.
    pub fn cluster(&self, node: String) -> ClusterArgs {
        ClusterArgs {
            manifests: self.manifests.clone().unwrap_or_default(),
            node,
            family: self.family,
            settings: self.settings.clone(),
        }
    }
}

/// Arguments of `ferrule explain`.
#[derive(Debug, Args)]
// The running proxy has its own settings.
#[command(mut_group("SettingsArgs", |group| group.requires("manifests")))]
pub struct ExplainArgs {
    /// Service (shop/web, shop/web:http), address (10.96.0.10:80, 10.96.0.53:53/UDP) or NodePort
    /// (nodeport:30080)
    #[arg(value_name = "TARGET")]
    pub target: Target,

    /// For a client with this IP address
    #[arg(long, value_name = "CLIENT", value_parser = target::client)]
    pub from: Option<IpAddr>,

    /// Open a TCP connection to each chosen endpoint from here, and say which refuse or stay silent
    #[arg(long)]
    pub probe: bool,

    /// Sentences or JSON
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Socket of the running proxy, its --admin-socket [default: /run/ferrule/proxy.sock]
    ///
    /// Together with --manifests, both are asked and compared.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Read the cluster from this file or folder instead of asking a proxy
    #[arg(long, value_name = "PATH", requires = "node")]
    pub manifests: Option<PathBuf>,

    /// Name of the node to decide for
    #[arg(long, value_name = "NAME", requires = "manifests")]
    pub node: Option<String>,

    #[command(flatten)]
    pub settings: SettingsArgs,
}

impl ExplainArgs {
    /// The cluster and the settings, where they come from files.
    pub fn cluster(&self) -> ClusterArgs {
        ClusterArgs {
            manifests: self.manifests.clone().unwrap_or_default(),
            node: self.node.clone().unwrap_or_default(),
            family: None,
            settings: self.settings.clone(),
        }
    }
}

/// Arguments of `ferrule support-bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// The tar file to create, or - for standard output
    /// [default: ferrule-support-HOST-TIME.tar in this folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Socket of the running proxy, its --admin-socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
}

/// Takes the name of a mode.
fn mode_parser() -> impl TypedValueParser<Value = &'static Mode> {
    let values = modes::ALL.iter().map(|mode| {
        let value = PossibleValue::new(mode.name);
        match mode.about {
            Some(about) => value.help(about),
            None => value.hide(true),
        }
    });
    PossibleValuesParser::new(values)
        .map(|name| modes::find(&name).expect("only names of modes are possible"))
}

/// The word for a family on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FamilyArg {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

impl From<FamilyArg> for Family {
    fn from(family: FamilyArg) -> Self {
        match family {
            FamilyArg::Ipv4 => Self::V4,
            FamilyArg::Ipv6 => Self::V6,
        }
    }
}

/// How the answer is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For scripts
    Json,
}

fn cidr(text: &str) -> Result<IpNet, String> {
    parse_cidr(text).ok_or_else(|| "not a network such as 10.244.0.0/16".to_owned())
}

fn node_port_address(text: &str) -> Result<String, String> {
    NodePortAddresses::parse(&[text])
        .map(|_| text.to_owned())
        .map_err(|_| "neither a network nor one of the words primary, localhost, all".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_of_networks_are_checked_item_by_item() {
        let parse = |flag: &str| {
            Cli::try_parse_from([
                "ferrule",
                "desired",
                "--manifests",
                "x",
                "--node",
                "n",
                flag,
            ])
        };
        let Verb::Desired(arguments) = parse("--cluster-cidr=10.244.0.0/16,fd00::/48")
            .unwrap()
            .verb
        else {
            panic!("another verb");
        };
        assert_eq!(arguments.cluster.settings.cluster_cidr.len(), 2);
        assert!(parse("--nodeport-addresses=primary,10.0.0.0/8").is_ok());
        let error = parse("--nodeport-addresses=primary,home")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'home'") && error.contains("localhost"),
            "{error}"
        );
    }
}
