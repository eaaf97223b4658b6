//! The table of results in `docs/conformance.md`, which is also where they are kept.
//!
//! In: what became of each test with one program in one mode. Out: the page with that column replaced
//! and everything else as it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::suite::Outcomes;

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// At the second attempt.
    PassedAgain,
    /// With the reason it gave.
    Failed(String),
    /// The test found that this cluster is not for it, and why.
    Skipped(String),
}

/// The columns, in order.
const COLUMNS: [(&str, &str); 5] = [
    ("kube-proxy", "nftables"),
    ("ferrule", "nftables"),
    ("kube-proxy", "iptables"),
    ("ferrule", "iptables"),
    ("ferrule", "userspace"),
];
const BEGIN: &str = "<!-- results -->\n";
const END: &str = "<!-- end of results -->\n";
/// A test that was not run.
const NOTHING: &str = "–";

/// The page, taken apart.
pub struct Table {
    before: String,
    after: String,
    rows: BTreeMap<String, Row>,
}

/// What is in the columns, and why.
#[derive(Default)]
struct Row {
    cells: [String; COLUMNS.len()],
    remark: String,
}

impl Table {
    pub fn read() -> Result<Self> {
        let page = page()?;
        let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
            let (table, after) = rest.split_once(END)?;
            Some((before.to_owned(), table, after.to_owned()))
        });
        let (before, table, after) = parts.context("docs/conformance.md has no table")?;
        let mut rows = BTreeMap::new();
        for line in table.lines().skip_while(|line| !line.starts_with("|---")) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, name, cells @ .., remark, _] = &cells[..] else {
                continue;
            };
            if name.starts_with("---") {
                continue;
            }
            ensure!(
                cells.len() == COLUMNS.len(),
                "docs/conformance.md: {name} has {} results",
                cells.len()
            );
            let row: &mut Row = rows.entry((*name).to_owned()).or_default();
            for (to, from) in row.cells.iter_mut().zip(cells) {
                (*from).clone_into(to);
            }
            (*remark).clone_into(&mut row.remark);
        }
        Ok(Self {
            before,
            after,
            rows,
        })
    }

    /// Replaces what is known of these tests with this program in this mode.
    pub fn put(&mut self, program: &str, mode: &str, outcomes: &Outcomes) {
        let Some(column) = COLUMNS.iter().position(|one| *one == (program, mode)) else {
            return;
        };
        for (test, outcome) in outcomes {
            let row = self.rows.entry(name(test)).or_default();
            let (cell, remark) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::PassedAgain => ("passed²", ""),
                Outcome::Failed(reason) => ("**failed**", reason.as_str()),
                Outcome::Skipped(reason) => ("skipped", reason.as_str()),
            };
            cell.clone_into(&mut row.cells[column]);
            let fine =
                |cell: &String| cell.starts_with("passed") || !cell.contains(char::is_alphabetic);
            if row.cells.iter().all(fine) {
                row.remark.clear();
            } else if row.remark.is_empty() {
                // A reason that a person wrote stays.
                row.remark = remark.replace('|', "/");
            }
        }
    }

    pub fn write(&self) -> Result<()> {
        let page = page()?;
        std::fs::write(&page, self.text()?).with_context(|| page.display().to_string())
    }

    fn text(&self) -> Result<String> {
        let mut table = String::from("| Test |");
        for (program, mode) in COLUMNS {
            write!(table, " {program} {mode} |")?;
        }
        table += " Why |\n|---|";
        table += &"---|".repeat(COLUMNS.len() + 1);
        table += "\n";
        for (name, row) in &self.rows {
            write!(table, "| {name} |")?;
            for cell in &row.cells {
                let cell = if cell.is_empty() { NOTHING } else { cell };
                write!(table, " {cell} |")?;
            }
            writeln!(table, " {} |", row.remark)?;
        }
        Ok(format!("{}{BEGIN}{table}{END}{}", self.before, self.after))
    }
}

/// A test's name as a cell. All are of sig-network.
fn name(test: &str) -> String {
    let test = test.trim_start_matches("[sig-network] ");
    test.replace('|', "/")
        .replace('[', "\\[")
        .replace(']', "\\]")
}

fn page() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("the lab lies in the repository")?;
    Ok(root.join("docs/conformance.md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_replaced_and_the_rest_stays() {
        let page = format!("# Before\n{BEGIN}{END}after\n");
        let mut table = Table::parse(&page).unwrap();
        let test = |name: &str| format!("[sig-network] {name} [Conformance]");
        let results = |outcome: Outcome| [(test("a"), outcome)].into();
        table.put("kube-proxy", "nftables", &results(Outcome::Passed));
        table.put(
            "ferrule",
            "userspace",
            &results(Outcome::Failed("x|y".into())),
        );
        let once = table.text().unwrap();
        let row = r"| a \[Conformance\] | passed | – | – | – | **failed** | x/y |";
        assert!(once.contains(row), "{once}");
        assert!(once.starts_with("# Before\n") && once.ends_with("after\n"));

        let mut again = Table::parse(&once).unwrap();
        assert_eq!(again.text().unwrap(), once);
        again.put("ferrule", "nftables", &results(Outcome::Passed));
        let twice = again.text().unwrap();
        assert!(twice.contains("| passed | passed | – |"), "{twice}");
        again.put("ferrule", "userspace", &results(Outcome::PassedAgain));
        let row = r"| a \[Conformance\] | passed | passed | – | – | passed² |  |";
        assert!(again.text().unwrap().contains(row));
    }

    #[test]
    fn the_page_can_be_read() {
        assert!(Table::read().is_ok());
    }
}
