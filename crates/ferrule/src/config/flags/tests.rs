//! The command line: its grammar, its messages, its help, and the page that documents it.

use super::table::{Scope, TABLE};
use super::{Flags, Request, help, parse};
use crate::version::KUBERNETES as KUBERNETES_VERSION;

fn flags(words: &[&str]) -> Flags {
    parse(words.iter().copied()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn message(words: &[&str]) -> String {
    parse(words.iter().copied()).unwrap_err().to_string()
}

#[test]
fn every_message_of_a_bad_flag_is_kube_proxys() {
    let bool_fault = "strconv.ParseBool: parsing";
    for (words, expected) in [
        (&["--nope"][..], "unknown flag: --nope".to_owned()),
        (&["--no_pe=1"], "unknown flag: --no_pe".to_owned()),
        (&["-x"], "unknown shorthand flag: 'x' in -x".to_owned()),
        (&["--config"], "flag needs an argument: --config".to_owned()),
        (&["-v"], "flag needs an argument: 'v' in -v".to_owned()),
        (&["--=x"], "bad flag syntax: --=x".to_owned()),
        (&["---x"], "bad flag syntax: ---x".to_owned()),
        (
            &["--cleanup=maybe"],
            format!("invalid argument \"maybe\" for \"--cleanup\" flag: {bool_fault} \"maybe\": invalid syntax"),
        ),
        (
            &["--conntrack-min=abc"],
            "invalid argument \"abc\" for \"--conntrack-min\" flag: strconv.ParseInt: parsing \"abc\": invalid syntax".to_owned(),
        ),
        (
            &["--kube-api-qps=x"],
            "invalid argument \"x\" for \"--kube-api-qps\" flag: strconv.ParseFloat: parsing \"x\": invalid syntax".to_owned(),
        ),
        (
            &["--config-sync-period=5"],
            "invalid argument \"5\" for \"--config-sync-period\" flag: time: missing unit in duration \"5\"".to_owned(),
        ),
        (
            &["--bind-address=foo"],
            "invalid argument \"foo\" for \"--bind-address\" flag: \"foo\" is not a valid IP address".to_owned(),
        ),
        (
            &["--healthz-bind-address=foo"],
            "invalid argument \"foo\" for \"--healthz-bind-address\" flag: \"foo\" is not in a valid format (ip or ip:port): address foo: missing port in address".to_owned(),
        ),
        (
            &["--healthz-bind-address=localhost:80"],
            "invalid argument \"localhost:80\" for \"--healthz-bind-address\" flag: \"localhost\" is not a valid IP address".to_owned(),
        ),
        (
            &["--healthz-bind-address=1.2.3.4:70000"],
            "invalid argument \"1.2.3.4:70000\" for \"--healthz-bind-address\" flag: \"70000\" is not a valid number".to_owned(),
        ),
        (
            &["--feature-gates=Foo"],
            "invalid argument \"Foo\" for \"--feature-gates\" flag: malformed pair, expect string=bool".to_owned(),
        ),
        (
            &["--feature-gates=AllAlpha=x"],
            format!("invalid argument \"AllAlpha=x\" for \"--feature-gates\" flag: invalid value of AllAlpha: x, err: {bool_fault} \"x\": invalid syntax"),
        ),
        (
            &["-v=x"],
            "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax".to_owned(),
        ),
        (
            &["--vmodule=a"],
            "invalid argument \"a\" for \"--vmodule\" flag: \"a\" does not have the pattern=N format".to_owned(),
        ),
        (
            &["--version=1.2"],
            format!("invalid argument \"1.2\" for \"--version\" flag: {bool_fault} \"1.2\": invalid syntax"),
        ),
        (
            &["--version=v9.9.9-x"],
            format!("invalid argument \"v9.9.9-x\" for \"--version\" flag: version \"v9.9.9-x\" must match major/minor/patch of default version \"{KUBERNETES_VERSION}\""),
        ),
    ] {
        assert_eq!(message(words), expected, "{words:?}");
    }
}

#[test]
fn core_001_version_is_printed_before_anything_is_read() {
    for words in [
        &["--version"][..],
        &["--version=true"],
        &["--version", "--config=/nowhere", "--proxy-mode=nonsense"],
    ] {
        let printed = Request::Print("Kubernetes v1.36.4\n".to_owned());
        assert_eq!(flags(words).request(), printed, "{words:?}");
    }
    assert_eq!(flags(&["--version=false"]).request(), Request::Run);
}

#[test]
fn the_raw_version_begins_like_kube_proxys_and_names_this_program() {
    let Request::Print(text) = flags(&["--version=raw"]).request() else {
        panic!("nothing printed");
    };
    let start =
        "version.Info{Major:\"1\", Minor:\"36\", GitVersion:\"v1.36.4\", Program:\"ferrule\"";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")) && text.ends_with("}\n"));
}

#[test]
fn a_version_with_the_same_numbers_is_reported_instead() {
    let flags = flags(&["--version=v1.36.4-custom.1"]);
    assert_eq!(flags.request(), Request::Run);
    assert_eq!(flags.reported_version(), "v1.36.4-custom.1");
    assert_eq!(Flags::default().reported_version(), KUBERNETES_VERSION);
}

#[test]
fn core_002_a_bad_flag_shows_the_usage_and_a_stray_argument_does_not() {
    let report = parse(["--nope"]).unwrap_err().report();
    assert!(report.starts_with("Usage:\n  kube-proxy [flags]\n\nFlags:\n"));
    assert!(
        report.ends_with("\n\nError: unknown flag: --nope\n"),
        "{report}"
    );
    assert_eq!(
        parse(["foo"]).unwrap_err().report(),
        "Error: \"kube-proxy\" does not take any arguments, got [\"foo\"]\n"
    );
    assert_eq!(
        parse(["", "a", "--", "--b"]).unwrap_err().to_string(),
        "\"kube-proxy\" does not take any arguments, got [\"\" \"a\" \"--b\"]"
    );
}

#[test]
fn empty_arguments_are_tolerated_and_help_comes_before_stray_ones() {
    assert_eq!(flags(&["", "--", ""]).request(), Request::Run);
    assert!(matches!(flags(&["foo", "-h"]).request(), Request::Print(_)));
    assert_eq!(message(&["--help", "--nope"]), "unknown flag: --nope");
}

#[test]
fn core_003_underscores_are_hyphens() {
    for spec in TABLE {
        let value = spec.value(&Flags::default()).text();
        let value = match spec.name {
            "feature-gates" => "WatchList=true",
            "vmodule" => "a=1",
            "nodeport-addresses" | "ipvs-exclude-cidrs" => "10.0.0.0/8",
            _ => &value,
        };
        let spelled = |name: &str| flags(&[&format!("--{name}={value}")]);
        let underscored = spec.name.replace('-', "_");
        assert_eq!(spelled(spec.name), spelled(&underscored), "{}", spec.name);
    }
    assert_eq!(flags(&["--proxy_mode", "ipvs"]).proxy_mode.value.0, "ipvs");
}

#[test]
fn values_stand_after_an_equals_sign_or_in_the_next_word() {
    assert_eq!(flags(&["--config=a=b"]).config.value, "a=b");
    assert_eq!(flags(&["--config", "--x"]).config.value, "--x");
    assert_eq!(flags(&["--config="]).config.value, "");
    for words in [
        &["-v", "2"][..],
        &["-v=2"],
        &["-v2"],
        &["--v", "2"],
        &["--v=2"],
    ] {
        assert_eq!(flags(words).v.value.0, 2, "{words:?}");
    }
}

#[test]
fn booleans_take_no_word_of_their_own() {
    assert!(flags(&["--cleanup"]).cleanup.value);
    assert!(!flags(&["--cleanup", "--cleanup=F"]).cleanup.value);
    let error = "\"kube-proxy\" does not take any arguments, got [\"false\"]";
    assert_eq!(message(&["--cleanup", "false"]), error);
}

#[test]
fn repeated_flags_add_to_lists_and_gates_and_replace_the_rest() {
    let flags = flags(&[
        "--nodeport-addresses=10.0.0.0/8,primary",
        "--nodeport-addresses=localhost",
        "--feature-gates=AllAlpha=true",
        "--feature-gates= WatchList = false ,",
        "--proxy-mode=ipvs",
        "--proxy-mode=nftables",
    ]);
    assert_eq!(
        flags.nodeport_addresses.value.0.unwrap(),
        ["10.0.0.0/8", "primary", "localhost"]
    );
    assert_eq!(flags.feature_gates.value.0.len(), 2);
    assert_eq!(flags.proxy_mode.value.0, "nftables");
}

#[test]
fn a_value_after_an_empty_address_is_taken() {
    let flags = flags(&["--metrics-bind-address=", "--metrics-bind-address=1.2.3.4"]);
    assert_eq!(flags.metrics_bind_address.value.0, "1.2.3.4");
}

#[test]
fn deprecated_flags_work_and_say_so() {
    let flags = flags(&["--healthz-port=9999", "--metrics-port", "0"]);
    assert_eq!(flags.healthz_port.value, 9999);
    let rest = "This flag is deprecated and will be removed in a future release. Please use";
    assert_eq!(
        flags.notices,
        [
            format!(
                "Flag --healthz-port has been deprecated, {rest} --healthz-bind-address instead."
            ),
            format!(
                "Flag --metrics-port has been deprecated, {rest} --metrics-bind-address instead."
            ),
        ]
    );
    let report = parse(["--healthz-port=1", "x"]).unwrap_err().report();
    assert!(
        report.starts_with("Flag --healthz-port has been"),
        "{report}"
    );
}

#[test]
fn all_flags_are_told_sorted_with_hidden_ones_and_help() {
    let entries = flags(&["-v=1", "--nodeport-addresses=a,b"]).entries();
    assert!(entries.is_sorted());
    assert_eq!(entries.len(), TABLE.len());
    let value = |name| {
        let found = entries.iter().find(|(key, _)| *key == name);
        found.unwrap_or_else(|| panic!("{name}")).1.as_str()
    };
    for (name, expected) in [
        ("help", "false"),
        ("version", "false"),
        ("healthz-port", "10256"),
        ("v", "1"),
        ("vmodule", ""),
        ("nodeport-addresses", "[a,b]"),
        ("ipvs-exclude-cidrs", "[]"),
        ("feature-gates", ""),
        ("kube-api-qps", "5"),
        ("conntrack-tcp-timeout-established", "24h0m0s"),
        ("log-text-info-buffer-size", "0"),
        ("dry-run", "false"),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[test]
fn help_shows_every_flag_that_is_not_deprecated() {
    let text = help::help();
    for spec in TABLE {
        let shown = text.contains(&format!("--{} ", spec.name));
        let shown = shown
            && text.lines().any(|line| {
                line.trim_start().starts_with(&format!("--{} ", spec.name))
                    || line.contains(&format!(", --{} ", spec.name))
            });
        assert_eq!(shown, spec.deprecated.is_none(), "{}", spec.name);
    }
    for line in [
        "      --bind-address ip ",
        "      --healthz-bind-address ipport ",
        "      --proxy-mode ProxyMode ",
        "      --detect-local-mode LocalMode ",
        "      --feature-gates mapStringBool ",
        "      --ipvs-exclude-cidrs strings ",
        "      --log-json-info-buffer-size quantity ",
        "  -v, --v Level ",
        "      --vmodule pattern=N,... ",
        "      --version version[=true] ",
        "  -h, --help ",
    ] {
        assert!(text.contains(line), "{line}");
    }
    assert!(text.contains("(default 127.0.0.1:10249)") && text.contains("(default \"text\")"));
    assert!(!text.contains("(default false)") && !text.contains("(default 0s)"));
    assert!(text.contains("LoggingAlphaOptions=true|false (ALPHA - default=false)"));
    assert!(!text.contains("NFTablesProxyMode"));
}

#[test]
fn our_own_flags_stand_under_their_own_heading() {
    let text = help::help();
    let (common, own) = text
        .split_once("Flags kube-proxy does not have:\n")
        .unwrap();
    assert!(own.contains("--manifests string") && own.contains("--dry-run"));
    assert!(!common.contains("--manifests"));
    assert_eq!(flags(&["--manifests", "x"]).manifests.value, "x");
    assert!(own.contains("--sync-pace SyncPace") && own.contains("(default cost)"));
}

#[test]
fn the_documented_flags_are_the_declared_ones() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).expect("the page exists");
    let documented: Vec<[String; 4]> = page
        .lines()
        .filter(|line| line.starts_with("| `-"))
        .map(|line| {
            let cells: Vec<_> = line
                .split(" | ")
                .map(|cell| cell.trim_matches(['|', ' ']))
                .collect();
            let bare = |at: usize| cells[at].replace('`', "");
            [bare(0), bare(1), bare(2), bare(4)]
        })
        .collect();
    let defaults = Flags::default();
    let mut specs: Vec<_> = TABLE.iter().collect();
    specs.sort_unstable_by_key(|spec| spec.name);
    let declared: Vec<[String; 4]> = specs
        .iter()
        .map(|spec| {
            let value = spec.value(&defaults);
            let name = match spec.short {
                Some(letter) => format!("-{letter}, --{}", spec.name),
                None => format!("--{}", spec.name),
            };
            let kind = match value.word() {
                "" => "bool",
                word => word,
            };
            let counts = match spec.scope {
                Scope::Always => "yes",
                Scope::WithoutFile => "no",
            };
            [name, kind.to_owned(), value.text(), counts.to_owned()]
        })
        .collect();
    for (documented, declared) in documented.iter().zip(&declared) {
        assert_eq!(documented, declared);
    }
    assert_eq!(documented.len(), declared.len());
}
