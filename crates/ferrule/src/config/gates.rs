//! Feature gates: which exist, which values they may take, and what they are now.
//!
//! In: the names and values of the flag or file. Out: [`Gates`], and what to warn about. Every
//! gate of every Kubernetes program is known here, because a shared configuration may name any.

use std::collections::BTreeMap;

mod table;

/// How far a feature has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May change or go; usually off.
    Alpha,
    /// Likely to stay; usually on.
    Beta,
    /// Here to stay.
    Ga,
    /// Will go.
    Deprecated,
}

impl Stage {
    /// The word in the `stage` label of `kubernetes_feature_enabled`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// The gates this program asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// External IPs of Services are served.
    AllowServiceExternalIPs,
    /// `/flagz` exists.
    ComponentFlagz,
    /// `/statusz` exists.
    ComponentStatusz,
    /// Split streams and buffers of the log may be configured.
    LoggingAlphaOptions,
    /// The log may be written as JSON.
    LoggingBetaOptions,
    /// First lists arrive as a stream.
    WatchListClient,
    /// Mode `ipvs` may be chosen (a name of the next release, on unless switched off).
    KubeProxyIPVS,
}

impl Gate {
    const fn name(self) -> &'static str {
        match self {
            Self::AllowServiceExternalIPs => "AllowServiceExternalIPs",
            Self::ComponentFlagz => "ComponentFlagz",
            Self::ComponentStatusz => "ComponentStatusz",
            Self::LoggingAlphaOptions => "LoggingAlphaOptions",
            Self::LoggingBetaOptions => "LoggingBetaOptions",
            Self::WatchListClient => "WatchListClient",
            Self::KubeProxyIPVS => "KubeProxyIPVS",
        }
    }

    /// The value while nobody sets it, for names the table of v1.36 does not have.
    const fn next_release_default(self) -> bool {
        matches!(self, Self::KubeProxyIPVS)
    }
}

/// Switches all gates of a stage that are not named themselves.
const META: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// The value of every gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    values: BTreeMap<&'static str, (Stage, bool)>,
    /// Values given to names of the next release.
    next: BTreeMap<&'static str, bool>,
}

impl Default for Gates {
    fn default() -> Self {
        let meta = META.map(|(name, stage)| (name, (stage, false)));
        let gates = table::GROUPS.iter().flat_map(|group| {
            let state = (group.stage, group.default);
            group.names.iter().map(move |name| (*name, state))
        });
        Self {
            values: gates.chain(meta).collect(),
            next: BTreeMap::new(),
        }
    }
}

impl Gates {
    /// The defaults changed by `given`, and what is worth a warning about it.
    ///
    /// # Errors
    /// Names nobody knows; values of locked gates. An unknown name ends the search, as nothing
    /// after it can be trusted to be spelled right.
    pub fn apply(
        given: &BTreeMap<String, bool>,
    ) -> Result<(Self, Vec<GateWarning>), Vec<GateError>> {
        let mut gates = Self::default();
        let mut warnings = Vec::new();
        let mut errors = Vec::new();
        for (meta, stage) in META {
            if let Some(value) = given.get(meta) {
                gates.set_stage(stage, *value);
            }
        }
        for (name, value) in given {
            match known(name) {
                None => {
                    errors.push(GateError::Unknown(name.clone()));
                    break;
                }
                Some(Known::Meta(name, stage)) => {
                    gates.values.insert(name, (stage, *value));
                }
                Some(Known::NextRelease(name)) => {
                    gates.next.insert(name, *value);
                }
                Some(Known::Listed(_, group)) if group.locked && group.default != *value => {
                    errors.push(GateError::Locked {
                        name: name.clone(),
                        value: *value,
                    });
                }
                Some(Known::Listed(name, group)) => {
                    gates.values.insert(name, (group.stage, *value));
                    if matches!(group.stage, Stage::Ga | Stage::Deprecated) {
                        warnings.push(GateWarning {
                            name,
                            value: *value,
                            stage: group.stage,
                        });
                    }
                }
            }
        }
        if errors.is_empty() {
            Ok((gates, warnings))
        } else {
            Err(errors)
        }
    }

    /// Whether a gate is on.
    pub fn is_on(&self, gate: Gate) -> bool {
        let name = gate.name();
        match self.values.get(name) {
            Some((_, value)) => *value,
            None => self
                .next
                .get(name)
                .copied()
                .unwrap_or(gate.next_release_default()),
        }
    }

    /// Every gate of v1.36 by name, `AllAlpha` and `AllBeta` included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let values = self.values.iter();
        values.map(|(name, (stage, value))| (*name, *stage, *value))
    }

    fn set_stage(&mut self, stage: Stage, value: bool) {
        let chosen = table::GROUPS.iter().filter(|group| group.stage == stage);
        for name in chosen.flat_map(|group| group.names) {
            self.values.insert(name, (stage, value));
        }
    }
}

enum Known {
    Listed(&'static str, &'static table::Group),
    NextRelease(&'static str),
    Meta(&'static str, Stage),
}

fn known(wanted: &str) -> Option<Known> {
    if let Some((name, stage)) = META.into_iter().find(|(name, _)| *name == wanted) {
        return Some(Known::Meta(name, stage));
    }
    for group in table::GROUPS {
        if let Ok(at) = group.names.binary_search(&wanted) {
            return Some(Known::Listed(group.names[at], group));
        }
    }
    let at = table::NEXT_RELEASE.binary_search(&wanted).ok()?;
    Some(Known::NextRelease(table::NEXT_RELEASE[at]))
}

/// Every alpha and beta gate with its default, sorted: what `--help` lists.
pub fn unfinished() -> impl Iterator<Item = (&'static str, Stage, bool)> {
    let mut rows: Vec<_> = Gates::default()
        .iter()
        .filter(|(_, stage, _)| matches!(stage, Stage::Alpha | Stage::Beta))
        .collect();
    rows.sort_unstable_by_key(|(name, ..)| *name);
    rows.into_iter()
}

/// A gate was set that will go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWarning {
    /// The gate.
    pub name: &'static str,
    /// The value it was given.
    pub value: bool,
    /// [`Stage::Ga`] or [`Stage::Deprecated`].
    pub stage: Stage,
}

impl GateWarning {
    /// The message kube-proxy logs, beside keys `featureGate` and `value`.
    pub const fn message(&self) -> &'static str {
        match self.stage {
            Stage::Deprecated => {
                "Warning: setting deprecated feature gate. It will be removed in a future release."
            }
            _ => "Warning: setting GA feature gate. It will be removed in a future release.",
        }
    }
}

/// A gate cannot be set so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No such gate.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// Only its default is allowed.
    #[error("cannot set feature gate {name} to {value}, feature is locked to {}", !.value)]
    Locked {
        /// The gate.
        name: String,
        /// The value that was refused.
        value: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(given: &[(&str, bool)]) -> Result<(Gates, Vec<GateWarning>), Vec<GateError>> {
        let given = given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        Gates::apply(&given.collect())
    }

    fn messages(given: &[(&str, bool)]) -> Vec<String> {
        let errors = apply(given).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_table_is_sorted_and_complete() {
        for group in table::GROUPS {
            assert!(group.names.is_sorted());
        }
        assert!(table::NEXT_RELEASE.is_sorted());
        assert_eq!(table::NEXT_RELEASE.len(), 37);
        // 240 names and the two that switch a stage.
        assert_eq!(Gates::default().iter().count(), 242);
    }

    #[test]
    fn core_018_every_known_gate_is_accepted_at_its_default() {
        // Naming a whole stage switches it, whatever its members' defaults are.
        let is_stage = |name: &str| META.iter().any(|(meta, _)| *meta == name);
        for (name, _, value) in Gates::default().iter() {
            if is_stage(name) {
                assert!(apply(&[(name, value)]).is_ok());
                continue;
            }
            let (gates, _) = apply(&[(name, value)]).unwrap();
            assert_eq!(gates, Gates::default(), "{name}");
        }
        for name in table::NEXT_RELEASE {
            assert!(apply(&[(name, true)]).is_ok());
        }
    }

    #[test]
    fn core_018_unknown_and_locked_gates_are_refused() {
        assert_eq!(
            messages(&[("Nope", true)]),
            ["unrecognized feature gate: Nope"]
        );
        assert_eq!(
            messages(&[("NFTablesProxyMode", false)]),
            ["cannot set feature gate NFTablesProxyMode to false, feature is locked to true"]
        );
        assert_eq!(
            messages(&[("GitRepoVolumeDriver", true)]),
            ["cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"]
        );
    }

    #[test]
    fn gates_that_will_go_are_warned_about() {
        let (gates, warnings) = apply(&[
            ("AllowServiceExternalIPs", false),
            ("KMSv1", true),
            ("WatchList", false),
        ])
        .unwrap();
        assert!(!gates.is_on(Gate::AllowServiceExternalIPs));
        let reported: Vec<_> = warnings.iter().map(|w| (w.name, w.message())).collect();
        assert_eq!(
            reported,
            [
                (
                    "AllowServiceExternalIPs",
                    "Warning: setting GA feature gate. It will be removed in a future release."
                ),
                (
                    "KMSv1",
                    "Warning: setting deprecated feature gate. It will be removed in a future \
                     release."
                ),
            ]
        );
    }

    #[test]
    fn a_stage_is_switched_except_for_gates_named_themselves() {
        let (gates, _) = apply(&[
            ("AllAlpha", true),
            ("AllBeta", false),
            ("NativeHistograms", false),
            ("ComponentFlagz", true),
        ])
        .unwrap();
        assert!(gates.is_on(Gate::LoggingAlphaOptions));
        let native = gates.iter().find(|(name, ..)| *name == "NativeHistograms");
        assert!(native.is_some_and(|(.., on)| !on));
        assert!(gates.is_on(Gate::ComponentFlagz));
        assert!(!gates.is_on(Gate::ComponentStatusz));
        assert!(gates.is_on(Gate::AllowServiceExternalIPs));
    }

    #[test]
    fn gates_of_the_next_release_have_a_value_before_they_are_named() {
        assert!(Gates::default().is_on(Gate::KubeProxyIPVS));
        let (gates, _) = apply(&[("KubeProxyIPVS", false)]).unwrap();
        assert!(!gates.is_on(Gate::KubeProxyIPVS));
    }

    #[test]
    fn help_lists_what_is_unfinished() {
        let names: Vec<_> = unfinished().map(|(name, ..)| name).collect();
        assert!(names.contains(&"LoggingAlphaOptions") && names.contains(&"AllBeta"));
        assert!(!names.contains(&"NFTablesProxyMode") && !names.contains(&"KMSv1"));
    }
}
