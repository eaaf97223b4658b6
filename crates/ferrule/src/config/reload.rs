//! What a changed configuration asks for: nothing, a change while running, or a new start.
//!
//! Two configurations are compared in their file form, so that what is reported has the names people
//! write. Some settings may change while the program runs; everything else needs a clean exit,
//! after which the supervisor starts it again.

use serde_json::Value;

use super::Config;
use super::v1alpha1::KubeProxyConfiguration;

/// Settings that may change while the program runs, by the name in the file. A name stands for
/// everything below it too.
pub const LIVE: [&str; 11] = [
    "logging.verbosity",
    "logging.vmodule",
    "healthzBindAddress",
    "metricsBindAddress",
    "nodePortAddresses",
    "iptables.syncPeriod",
    "iptables.minSyncPeriod",
    "ipvs.syncPeriod",
    "ipvs.minSyncPeriod",
    "nftables.syncPeriod",
    "nftables.minSyncPeriod",
];

/// One setting that became different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its dotted name in the file.
    pub field: String,
    /// What it was, as JSON.
    pub from: String,
    /// What it is to be, as JSON.
    pub to: String,
    /// Whether it may change while the program runs.
    pub live: bool,
}

/// What a changed configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// Nothing: it means the same.
    Nothing,
    /// All of it may change while the program runs.
    Live(Vec<Change>),
    /// Some of it needs a new start.
    Restart(Vec<Change>),
}

/// Compares the running configuration with a new one.
pub fn reload(running: &Config, wanted: &Config) -> Reload {
    let mut changes = Vec::new();
    compare("", &tree(running), &tree(wanted), &mut changes);
    match changes {
        changes if changes.is_empty() => Reload::Nothing,
        changes if changes.iter().all(|change| change.live) => Reload::Live(changes),
        changes => Reload::Restart(changes),
    }
}

fn tree(config: &Config) -> Value {
    serde_json::to_value(KubeProxyConfiguration::from(config))
        .expect("strings, numbers and lists are always JSON")
}

/// Goes down to the settings that differ; lists are compared as a whole.
fn compare(path: &str, from: &Value, to: &Value, changes: &mut Vec<Change>) {
    match (from, to) {
        (from, to) if from == to => {}
        (Value::Object(from), Value::Object(to)) => {
            let mut keys: Vec<_> = from.keys().chain(to.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let path = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(Value::Null)
                };
                compare(&path, &value(from), &value(to), changes);
            }
        }
        (from, to) => changes.push(Change {
            field: path.to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            live: LIVE.contains(&path),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::go::GoDuration;

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        config.set_platform_defaults();
        change(&mut config);
        config
    }

    #[test]
    fn the_same_configuration_asks_for_nothing() {
        assert_eq!(reload(&config(|_| ()), &config(|_| ())), Reload::Nothing);
    }

    #[test]
    fn periods_addresses_and_verbosity_change_while_running() {
        let wanted = config(|config| {
            config.logging.verbosity = 4;
            config.sync_period = GoDuration::from_secs(60);
            config.healthz_bind_address = "127.0.0.1:10256".to_owned();
            config.node_port_addresses = Some(vec!["primary".to_owned()]);
        });
        let Reload::Live(changes) = reload(&config(|_| ()), &wanted) else {
            panic!("needs a restart");
        };
        let reported: Vec<_> = changes
            .iter()
            .map(|change| {
                (
                    change.field.as_str(),
                    change.from.as_str(),
                    change.to.as_str(),
                )
            })
            .collect();
        assert_eq!(
            reported,
            [
                (
                    "healthzBindAddress",
                    "\"0.0.0.0:10256\"",
                    "\"127.0.0.1:10256\""
                ),
                ("iptables.syncPeriod", "\"30s\"", "\"1m0s\""),
                ("logging.verbosity", "0", "4"),
                ("nodePortAddresses", "null", "[\"primary\"]"),
            ]
        );
    }

    #[test]
    fn one_setting_that_cannot_change_means_a_restart() {
        let wanted = config(|config| {
            config.logging.verbosity = 4;
            config.feature_gates.insert("WatchList".to_owned(), false);
        });
        let Reload::Restart(changes) = reload(&config(|_| ()), &wanted) else {
            panic!("no restart");
        };
        let reported: Vec<_> = changes
            .iter()
            .map(|change| (change.field.as_str(), change.live))
            .collect();
        assert_eq!(
            reported,
            [("featureGates", false), ("logging.verbosity", true)]
        );
    }

    #[test]
    fn another_mode_means_a_restart_although_periods_only_move() {
        let wanted = config(|config| config.mode = "ipvs".to_owned());
        assert!(matches!(
            reload(&config(|_| ()), &wanted),
            Reload::Restart(_)
        ));
    }

    #[test]
    fn every_live_setting_is_one_the_file_has() {
        let tree = tree(&config(|config| {
            config.logging.vmodule = vec![crate::config::v1alpha1::VModuleItem::default()];
        }));
        for name in LIVE {
            let pointer = format!("/{}", name.replace('.', "/"));
            assert!(tree.pointer(&pointer).is_some(), "{name}");
        }
    }
}
