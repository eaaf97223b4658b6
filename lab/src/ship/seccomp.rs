//! The system calls that a container may make under the profile `RuntimeDefault`.
//!
//! In: the profile as the package `golang-github-containers-common` has it, in which some rules
//! depend on capabilities and processors. Out: the part of a runtime's configuration that holds for
//! a container with these capabilities.

use serde_json::{Value, json};

/// The processor in the profile's words.
const PROCESSOR: &str = "amd64";
const PROCESSORS: [&str; 3] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];

/// What of the profile holds for a container with these capabilities.
pub fn filter(profile: &Value, capabilities: &[String]) -> Value {
    let rules = profile["syscalls"].as_array().into_iter().flatten();
    let rules = rules.filter(|rule| applies(rule, capabilities)).map(plain);
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": PROCESSORS,
        "syscalls": rules.collect::<Vec<_>>(),
    })
}

fn applies(rule: &Value, capabilities: &[String]) -> bool {
    let list = |when: &str, what: &str| -> Vec<String> {
        let words = rule[when][what].as_array().into_iter().flatten();
        words
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect()
    };
    let has = |word: &String| capabilities.contains(word);
    let is_here = |word: &String| word == PROCESSOR;
    let (with, without) = (list("includes", "caps"), list("excludes", "caps"));
    let (only, except) = (list("includes", "arches"), list("excludes", "arches"));
    with.iter().all(has)
        && !without.iter().any(has)
        && (only.is_empty() || only.iter().any(is_here))
        && !except.iter().any(is_here)
}

/// The rule in the words of runtimes, which know no conditions.
fn plain(rule: &Value) -> Value {
    let mut plain = json!({ "names": rule["names"], "action": rule["action"] });
    if let Some(number) = rule["errnoRet"].as_u64() {
        plain["errnoRet"] = number.into();
    }
    let arguments = rule["args"].as_array().filter(|list| !list.is_empty());
    if let Some(arguments) = arguments {
        plain["args"] = arguments.clone().into();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_where_its_conditions_do() {
        let profile = json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": 38,
            "syscalls": [
                { "names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {} },
                { "names": ["reboot"], "action": "SCMP_ACT_ALLOW",
                  "includes": { "caps": ["CAP_SYS_BOOT"] } },
                { "names": ["reboot"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                  "excludes": { "caps": ["CAP_SYS_BOOT"] } },
                { "names": ["breakpoint"], "action": "SCMP_ACT_ALLOW",
                  "includes": { "arches": ["arm"] } },
            ],
        });
        let names = |capabilities: &[String]| -> Vec<String> {
            let filter = filter(&profile, capabilities);
            let rules = filter["syscalls"].as_array().unwrap().iter();
            rules
                .map(|rule| format!("{} {}", rule["names"][0], rule["action"]))
                .collect()
        };
        let allowed = [r#""read" "SCMP_ACT_ALLOW""#, r#""reboot" "SCMP_ACT_ALLOW""#];
        assert_eq!(names(&["CAP_SYS_BOOT".to_owned()]), allowed);
        let refused = [r#""read" "SCMP_ACT_ALLOW""#, r#""reboot" "SCMP_ACT_ERRNO""#];
        assert_eq!(names(&[]), refused);
    }
}
