//! Manifests as values: read, compared, and asked for the parts that run.
//!
//! In: YAML, as kustomize or Helm print it. Out: objects by kind and name.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Objects by kind and name.
pub struct Manifests(BTreeMap<(String, String), Value>);

impl Manifests {
    /// Reads a stream of YAML documents.
    pub fn read(text: &str) -> Result<Self> {
        let mut objects = BTreeMap::new();
        let mut document = String::new();
        for line in text.lines().chain(["---"]) {
            if line != "---" {
                document.push_str(line);
                document.push('\n');
                continue;
            }
            let document = std::mem::take(&mut document);
            let is_blank = |line: &str| line.trim().is_empty() || line.starts_with('#');
            if document.lines().all(is_blank) {
                continue;
            }
            let object: Value = serde_saphyr::from_str(&document)
                .with_context(|| format!("in this document:\n{document}"))?;
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (word(&object["kind"]), word(&object["metadata"]["name"]));
            if objects.insert(key.clone(), object).is_some() {
                bail!("{} {} occurs twice", key.0, key.1);
            }
        }
        Ok(Self(objects))
    }

    /// The object of this kind and name.
    pub fn find(&self, kind: &str, name: &str) -> Result<&Value> {
        let object = self.0.get(&(kind.to_owned(), name.to_owned()));
        object.with_context(|| format!("there is no {kind} {name}"))
    }

    /// The pod that runs on every node.
    pub fn pod(&self) -> Result<&Value> {
        Ok(&self.find("DaemonSet", "ferrule")?["spec"]["template"]["spec"])
    }

    /// The same with configuration files as values, whose comments and order mean nothing, and
    /// without what only one way of installing has.
    pub fn normalized(mut self) -> Result<Self> {
        for object in self.0.values_mut() {
            if let Some(text) = object["data"]["config.conf"].as_str() {
                object["data"]["config.conf"] = serde_saphyr::from_str(text)?;
            }
            let annotations = object.pointer_mut("/spec/template/metadata/annotations");
            if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                // With kustomize another mode is another folder, with Helm a value.
                annotations.remove("ferrule/mode");
            }
            for group in ["initContainers", "containers"] {
                let list = object.pointer_mut(&format!("/spec/template/spec/{group}"));
                for container in list.and_then(Value::as_array_mut).into_iter().flatten() {
                    // What it means for a tag with a version where nothing is written.
                    let policy = container.pointer_mut("/imagePullPolicy");
                    if policy.is_none() {
                        container["imagePullPolicy"] = "IfNotPresent".into();
                    }
                }
            }
        }
        Ok(self)
    }

    /// What differs, one line each.
    pub fn differences(&self, other: &Self) -> String {
        let mut lines = String::new();
        let keys: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        for key in keys {
            let path = format!("{} {}", key.0, key.1);
            let none = Value::Null;
            let (ours, theirs) = (self.0.get(key), other.0.get(key));
            differ(
                &path,
                ours.unwrap_or(&none),
                theirs.unwrap_or(&none),
                &mut lines,
            );
        }
        lines
    }
}

fn differ(path: &str, ours: &Value, theirs: &Value, lines: &mut String) {
    match (ours, theirs) {
        (Value::Object(left), Value::Object(right)) => {
            let names: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for name in names {
                let none = Value::Null;
                let (left, right) = (left.get(name), right.get(name));
                let path = format!("{path}.{name}");
                differ(&path, left.unwrap_or(&none), right.unwrap_or(&none), lines);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (number, (left, right)) in left.iter().zip(right).enumerate() {
                differ(&format!("{path}[{number}]"), left, right, lines);
            }
        }
        (left, right) if left == right => {}
        (left, right) => {
            // Writing to a String cannot fail.
            _ = writeln!(lines, "{path}: {left} and {right}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUSTOMIZE: &str = "kind: ConfigMap\nmetadata: {name: a}\ndata:\n  config.conf: |\n    # why\n    mode: x\n    y: 1\n---\nkind: B\nmetadata: {name: b}\n";
    const HELM: &str = "---\n# Source: x\nkind: B\nmetadata: {name: b}\n---\n# empty\n---\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  config.conf: |\n    y: 1\n    mode: x\n";

    #[test]
    fn order_and_comments_make_no_difference() {
        let read = |text| Manifests::read(text).unwrap().normalized().unwrap();
        assert_eq!(read(KUSTOMIZE).differences(&read(HELM)), "");
        let other = HELM.replace("y: 1", "y: 2");
        let lines = read(KUSTOMIZE).differences(&read(&other));
        assert_eq!(lines, "ConfigMap a.data.config.conf.y: 1 and 2\n");
    }

    #[test]
    fn an_object_must_not_occur_twice() {
        let twice = format!("{HELM}---\n{KUSTOMIZE}");
        assert!(Manifests::read(&twice).is_err());
    }
}
