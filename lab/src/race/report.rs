//! Figures of a race as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::spread::middle;

/// What one program did in one turn.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    pub program: String,
    pub mode: String,
    pub services: u32,
    pub endpoints: u32,
    pub figures: BTreeMap<String, f64>,
}

/// A row of the main table: what it is called, and the figure.
const ROWS: &[(&str, &str)] = &[
    ("exec → every Service reachable", "reachable"),
    ("… exec → all objects known", "known"),
    ("… resident memory then", "known rss"),
    ("… programming, by its own metric", "sync"),
    ("… processor time, children included", "cpu"),
    ("… received from the API server", "bytes"),
    ("… processor time of the API server", "server cpu"),
    (
        "one endpoint changed: API write → kernel, p50",
        "change p50",
    ),
    ("… p99", "change p99"),
    ("… of it until a bare watch receives it, p50", "echo p50"),
    ("… of it after that, p50", "part p50"),
    ("… received from the API server for it", "change bytes"),
    ("100 changes per second: lag p50", "churn p50"),
    ("… lag p99", "churn p99"),
    ("… processor time", "churn cpu"),
    ("… processor time of the API server", "churn server cpu"),
    ("… syncs", "churn syncs"),
    ("resident memory, most", "peak"),
    ("… with children", "tree"),
    ("… steady", "steady"),
    ("start over unchanged rules: time", "restart"),
    ("… programming, by its own metric", "restart sync"),
    ("… processor time", "restart cpu"),
    ("… objects written to the kernel", "restart writes"),
    ("TCP connect to a Service in the middle, p50", "connect p50"),
    ("… p99", "connect p99"),
    ("… connections per second, one client", "connect rate"),
    ("TCP connect directly to the pod, p50", "direct p50"),
    ("… p99", "direct p99"),
    ("… connections per second, one client", "direct rate"),
    ("binary", "binary"),
    ("load of the machine meanwhile", "load"),
];

/// What is shown of every size.
const GROWTH: &[(&str, &str)] = &[
    ("exec → every Service reachable", "reachable"),
    ("programming, by its own metric", "sync"),
    ("processor time of the start", "cpu"),
    ("one endpoint changed, p50", "change p50"),
    ("one endpoint changed, p99", "change p99"),
    (
        "one endpoint changed, without the API server, p50",
        "part p50",
    ),
    ("most resident memory", "peak"),
];

/// The main table at one size, and growth over all.
pub fn table(records: &[Record], services: u32) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = main_table(&mut text, records, services);
    let _written = growth(&mut text, records);
    text
}

fn main_table(text: &mut String, records: &[Record], services: u32) -> std::fmt::Result {
    let here: Vec<_> = records.iter().filter(|r| r.services == services).collect();
    let Some(first) = here.first() else {
        return writeln!(text, "No figures for {services} Services.");
    };
    let programs = programs(records);
    let turns = here.iter().filter(|r| r.program == first.program).count();
    writeln!(
        text,
        "{services} Services × {} endpoints, mode {}; {turns} turns each, middle (least–most).\n",
        first.endpoints, first.mode
    )?;
    writeln!(text, "| | {} | ratio |", programs.join(" | "))?;
    writeln!(text, "|---|{}---:|", "---:|".repeat(programs.len()))?;
    for (title, name) in ROWS {
        let values = |program: &&str| values(&here, program, name);
        let cells: Vec<_> = programs.iter().map(values).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let shown: Vec<_> = cells.iter().map(|cell| spread(name, *cell)).collect();
        writeln!(
            text,
            "| {title} | {} | {} |",
            shown.join(" | "),
            ratio(&cells)
        )?;
    }
    writeln!(text)
}

fn growth(text: &mut String, records: &[Record]) -> std::fmt::Result {
    let mut sizes: Vec<_> = records.iter().map(|record| record.services).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        return Ok(());
    }
    let programs = programs(records);
    for (title, name) in GROWTH {
        writeln!(text, "| {title} | {} | ratio |", programs.join(" | "))?;
        writeln!(text, "|---:|{}---:|", "---:|".repeat(programs.len()))?;
        for size in &sizes {
            let here: Vec<_> = records.iter().filter(|r| r.services == *size).collect();
            let values = |program: &&str| values(&here, program, name);
            let cells: Vec<_> = programs.iter().map(values).collect();
            let shown: Vec<_> = cells.iter().map(|cell| spread(name, *cell)).collect();
            writeln!(
                text,
                "| {size} | {} | {} |",
                shown.join(" | "),
                ratio(&cells)
            )?;
        }
        writeln!(text)?;
    }
    Ok(())
}

/// Everybody, in the order in which they ran.
pub fn programs(records: &[Record]) -> Vec<&str> {
    let mut programs: Vec<&str> = Vec::new();
    for record in records {
        if !programs.contains(&record.program.as_str()) {
            programs.push(&record.program);
        }
    }
    programs
}

type Cell = Option<(f64, f64, f64)>;

fn values(records: &[&Record], program: &str, name: &str) -> Cell {
    let of_program = records.iter().filter(|record| record.program == program);
    middle(
        of_program
            .filter_map(|record| record.figures.get(name).copied())
            .collect(),
    )
}

fn spread(name: &str, cell: Cell) -> String {
    let Some((middle, least, most)) = cell else {
        return "–".to_owned();
    };
    let [middle, least, most] = [middle, least, most].map(|value| show(name, value));
    if least == most {
        return middle;
    }
    format!("{middle} ({least}–{most})")
}

/// The last program, the newest kube-proxy, over the first, ferrule.
fn ratio(cells: &[Cell]) -> String {
    match cells {
        [Some((ours, ..)), .., Some((theirs, ..))] if *ours > 0.0 => {
            let ratio = theirs / ours;
            let digits = if ratio < 10.0 { 2 } else { 0 };
            format!("{ratio:.digits$}")
        }
        _ => "–".to_owned(),
    }
}

/// A figure with the unit its name stands for.
pub fn show(name: &str, value: f64) -> String {
    match name {
        "peak" | "tree" | "steady" | "known rss" | "binary" | "bytes" => {
            format!("{value:.1} MiB")
        }
        "change bytes" => format!("{value:.0} B"),
        "restart writes" | "connect rate" | "direct rate" | "churn rate" | "churn syncs" => {
            format!("{value:.0}")
        }
        "load" => format!("{value:.1}"),
        _ if name.ends_with("cpu") => format!("{value:.2} s"),
        _ if value.abs() < 1e-3 => format!("{:.0} µs", value * 1e6),
        _ if value < 1.0 => format!("{:.1} ms", value * 1e3),
        _ => format!("{value:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(program: &str, services: u32, reachable: f64) -> Record {
        Record {
            program: program.to_owned(),
            mode: "nftables".to_owned(),
            services,
            endpoints: 2,
            figures: BTreeMap::from([("reachable".to_owned(), reachable)]),
        }
    }

    #[test]
    fn turns_are_told_by_their_middle_and_compared_with_the_last_program() {
        let records = [
            record("ferrule", 100, 0.1),
            record("kube-proxy v1", 100, 9.0),
            record("ferrule", 100, 0.3),
        ];
        let text = table(&records, 100);
        let row = "| exec → every Service reachable | 200.0 ms (100.0 ms–300.0 ms) | 9.00 s | 45 |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("binary"), "{text}");
    }

    #[test]
    fn growth_is_shown_when_there_are_sizes() {
        let records = [record("ferrule", 100, 0.1), record("ferrule", 1000, 0.2)];
        assert!(table(&records, 100).contains("| 1000 | 200.0 ms |"));
    }
}
