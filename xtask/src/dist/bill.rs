//! What the program is made of: every crate in it, its licence and where it comes from.
//!
//! In: cargo's own account of the dependencies. Out: a bill of materials in `CycloneDX`, and the
//! texts of all licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Release, run, text};

/// The crates that end up in the program, by name and version.
pub(super) struct Bill {
    crates: Vec<Crate>,
}

struct Crate {
    name: String,
    version: String,
    licence: String,
    repository: Option<String>,
    /// Of the package as the registry has it.
    checksum: Option<String>,
    /// Names of the crates it is built with, as `name@version`.
    uses: BTreeSet<String>,
    folder: std::path::PathBuf,
}

impl Crate {
    fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

impl Bill {
    /// Asks cargo, for one target.
    pub(super) fn read(root: &Path, target: &str) -> Result<Self> {
        let manifest = root.join("Cargo.toml");
        let cargo = [
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            target,
            "--manifest-path",
            text(&manifest)?,
        ];
        let output = run::capture("cargo", cargo)?;
        ensure!(output.success, "cargo metadata: {}", output.stderr);
        let metadata: Value = serde_json::from_str(&output.stdout)?;
        let checksums = checksums(&fs::read_to_string(root.join("Cargo.lock"))?);
        Self::from(&metadata, &checksums)
    }

    fn from(metadata: &Value, checksums: &BTreeMap<String, String>) -> Result<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let packages: BTreeMap<String, Value> = list(&metadata["packages"])
            .into_iter()
            .filter_map(|package| Some((word(&package["id"])?, package)))
            .collect();
        let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
            .into_iter()
            .filter_map(|node| Some((word(&node["id"])?, node)))
            .collect();
        let linked = |id: &str| -> Vec<String> {
            let all = nodes
                .get(id)
                .map(|node| list(&node["deps"]))
                .unwrap_or_default();
            // What only runs while it is built, or in tests, is not in the program.
            let normal = all.iter().filter(|dep| {
                list(&dep["dep_kinds"])
                    .iter()
                    .any(|kind| kind["kind"].is_null())
            });
            normal.filter_map(|dep| word(&dep["pkg"])).collect()
        };

        let is_program = |package: &&Value| package["name"] == "ferrule";
        let program = packages
            .values()
            .find(is_program)
            .context("no package ferrule")?;
        let mut waiting = vec![word(&program["id"]).context("a package without id")?];
        let mut found = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if found.insert(id.clone()) {
                waiting.extend(linked(&id));
            }
        }
        let id_of = |id: &String| {
            let package = &packages[id];
            Some(format!(
                "{}@{}",
                word(&package["name"])?,
                word(&package["version"])?
            ))
        };
        let mut crates = Vec::new();
        for id in &found {
            let package = &packages[id];
            let (name, version) = (word(&package["name"]), word(&package["version"]));
            let (name, version) = name.zip(version).context("a package without a name")?;
            let manifest = word(&package["manifest_path"]).unwrap_or_default();
            crates.push(Crate {
                licence: word(&package["license"])
                    .with_context(|| format!("{name}: no licence"))?,
                repository: word(&package["repository"]),
                checksum: checksums.get(&format!("{name}@{version}")).cloned(),
                uses: linked(id).iter().filter_map(id_of).collect(),
                folder: Path::new(&manifest)
                    .parent()
                    .unwrap_or(Path::new(""))
                    .to_owned(),
                name,
                version,
            });
        }
        crates.sort_unstable_by_key(Crate::id);
        Ok(Self { crates })
    }

    /// The bill in `CycloneDX` 1.6.
    pub(super) fn cyclonedx(&self, release: &Release) -> Result<Vec<u8>> {
        let reference = |id: &str| format!("pkg:cargo/{id}");
        let component = |part: &Crate| {
            let id = reference(&part.id());
            let mut component = json!({
                "type": "library",
                "bom-ref": id,
                "purl": id,
                "name": part.name,
                "version": part.version,
                "licenses": [{"expression": part.licence.replace('/', " OR ")}],
            });
            if let Some(sum) = &part.checksum {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            if let Some(url) = &part.repository {
                component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
            }
            component
        };
        let (own, others): (Vec<_>, Vec<_>) =
            self.crates.iter().partition(|part| part.name == "ferrule");
        let mut program = component(own.first().context("the program itself")?);
        program["type"] = json!("application");
        let seconds = format!("--date=@{}", release.time);
        let date = run::capture("date", ["--utc", &seconds, "+%Y-%m-%dT%H:%M:%SZ"])?;
        let dependencies = self.crates.iter().map(|part| {
            let uses: Vec<_> = part.uses.iter().map(|id| reference(id)).collect();
            json!({"ref": reference(&part.id()), "dependsOn": uses})
        });
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"timestamp": date.stdout.trim(), "component": program},
            "components": others.into_iter().map(component).collect::<Vec<_>>(),
            "dependencies": dependencies.collect::<Vec<_>>(),
        });
        let mut text = serde_json::to_vec_pretty(&bill)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Every crate with its licence, and the text of every licence once.
    pub(super) fn licences(&self) -> Result<String> {
        let mut out = String::from("What this program is made of, and under which licences.\n\n");
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for part in &self.crates {
            writeln!(out, "{} {}: {}", part.name, part.version, part.licence)?;
            for text in licence_texts(&part.folder)? {
                texts.entry(text).or_default().push(part.id());
            }
        }
        for (text, crates) in texts {
            let line = "-".repeat(80);
            writeln!(
                out,
                "
{line}
{}
{line}

{text}",
                crates.join(", ")
            )?;
        }
        Ok(out)
    }
}

/// The files in which a crate says under which terms it may be used.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let says = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        if says.iter().any(|word| name.starts_with(word)) && entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    let read = |file| {
        Ok(String::from_utf8_lossy(&fs::read(file)?)
            .trim_end()
            .to_owned())
    };
    files.into_iter().map(read).collect()
}

/// The checksums in Cargo.lock, by `name@version`.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let field = |block: &str, name: &str| {
        let start = format!("{name} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            let id = format!("{}@{}", field(block, "name")?, field(block, "version")?);
            Some((id, field(block, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let package = |name: &str, licence: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": licence,
                   "repository": null, "manifest_path": "/nowhere/Cargo.toml"})
        };
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [package("ferrule", "Apache-2.0"), package("linked", "MIT/Apache-2.0"),
                         package("tests-only", "MIT"), package("builds-only", "MIT")],
            "resolve": {"nodes": [
                {"id": "ferrule", "deps": [uses("linked", Value::Null),
                                           uses("tests-only", json!("dev")),
                                           uses("builds-only", json!("build"))]},
                {"id": "linked", "deps": []},
            ]},
        })
    }

    #[test]
    fn only_what_is_in_the_program_is_on_the_bill() {
        let lock = "[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = Bill::from(&metadata(), &checksums(lock)).unwrap();
        let release = Release {
            version: "1.0.0".into(),
            commit: "c".into(),
            time: "0".into(),
        };
        let bill: Value = serde_json::from_slice(&bill.cyclonedx(&release).unwrap()).unwrap();
        assert_eq!(
            bill["metadata"]["component"]["purl"],
            "pkg:cargo/ferrule@1.0.0"
        );
        assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        let components = bill["components"].as_array().unwrap();
        assert_eq!(components.len(), 1);
        assert_eq!(components[0]["name"], "linked");
        assert_eq!(
            components[0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
    }

    #[test]
    fn a_crate_without_a_licence_is_not_released() {
        let mut metadata = metadata();
        metadata["packages"][1]["license"] = Value::Null;
        let error = Bill::from(&metadata, &BTreeMap::new()).err().unwrap();
        assert!(error.to_string().contains("linked"), "{error}");
    }
}
