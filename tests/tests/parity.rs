//! Keeps docs/parity.md true: every behaviour has one row, and no row claims what no test shows.
//!
//! In: the tables of the document and the names of all tests. The document's introduction gives
//! the same rules to its readers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ferrule_tests::{function_name, read, sources, test_names};

/// One numbered list of behaviours: the prefix of its rows, and the numbers.
struct List {
    prefix: &'static str,
    numbers: RangeInclusive<u32>,
}

/// What every mode has in common, and what single modes add.
const LISTS: [List; 5] = [
    List {
        prefix: "CORE",
        numbers: 1..=116,
    },
    List {
        prefix: "NFT",
        numbers: 1..=93,
    },
    List {
        prefix: "IPT",
        numbers: 1..=95,
    },
    List {
        prefix: "IPVS",
        numbers: 1..=83,
    },
    List {
        prefix: "USP",
        numbers: 1..=71,
    },
];

const QUIRKS: RangeInclusive<u32> = 1..=45;

/// What one tenant or one bad day could break.
const DEFECTS: RangeInclusive<u32> = 1..=22;

/// Object model, change tracking, topology, node addresses: what `core` answers for today.
const DECIDED: [RangeInclusive<u32>; 3] = [79..=99, 104..=109, 113..=116];

/// What a row may wait for.
const SUBJECTS: [&str; 3] = ["program", "nftables", "lab"];

#[test]
fn every_behaviour_has_exactly_one_row_in_order() {
    for list in LISTS {
        let ids: Vec<u32> = rows(list.prefix).iter().map(|row| row.id).collect();
        assert_eq!(ids, list.numbers.collect::<Vec<_>>(), "{}", list.prefix);
    }
}

#[test]
fn every_quirk_has_exactly_one_row_in_order() {
    let ids: Vec<u32> = rows("Q").iter().map(|row| row.id).collect();
    assert_eq!(ids, QUIRKS.collect::<Vec<_>>());
}

#[test]
fn every_claim_about_a_behaviour_is_shown_by_a_test() {
    let faults: Vec<_> = behaviours().iter().filter_map(fault_of_behaviour).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_quirk_is_kept_fixed_or_later_and_says_how() {
    let faults: Vec<_> = rows("Q").iter().filter_map(fault_of_quirk).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_defect_has_exactly_one_row_in_order_and_names_its_tests() {
    let defects = rows("D");
    let ids: Vec<u32> = defects.iter().map(|row| row.id).collect();
    assert_eq!(ids, DEFECTS.collect::<Vec<_>>());
    for row in &defects {
        assert!(!row.tests.is_empty(), "D-{:02} names no test", row.id);
        assert_eq!(fault_of_quirk(row), None);
    }
}

#[test]
fn what_core_decides_is_not_put_off() {
    let put_off = |row: &Row| row.status == "later" && DECIDED.iter().any(|r| r.contains(&row.id));
    let ids: Vec<u32> = rows("CORE")
        .iter()
        .filter(|row| put_off(row))
        .map(|row| row.id)
        .collect();
    assert!(ids.is_empty(), "must not wait: {ids:?}");
}

#[test]
fn every_named_test_exists() {
    let known = test_names();
    for row in behaviours().iter().chain(&rows("Q")).chain(&rows("D")) {
        let missing: Vec<_> = row
            .tests
            .iter()
            .filter(|name| !known.contains(*name))
            .collect();
        assert!(
            missing.is_empty(),
            "row {}-{}: no such test: {missing:?}",
            row.prefix,
            row.id
        );
    }
}

#[test]
fn every_test_with_an_id_stands_in_its_row() {
    let rows = behaviours();
    let listed: BTreeMap<(&str, u32), &Row> = rows
        .iter()
        .map(|row| ((row.prefix.as_str(), row.id), row))
        .collect();
    let known = test_names();
    let mut faults = Vec::new();
    for file in sources() {
        let text = read(&file);
        for name in text.lines().filter_map(function_name) {
            let ids = ids_in(name);
            if !ids.is_empty() && !known.contains(name) {
                faults.push(format!("{name} is named like a test and has no #[test]"));
            }
            let lists = |id: &(&'static str, u32)| {
                let row = listed.get(id);
                row.is_some_and(|row| row.tests.iter().any(|test| test == name))
            };
            for (prefix, id) in ids.iter().filter(|id| !lists(id)) {
                let file = file.display();
                faults.push(format!("{prefix}-{id:03} does not list {name} of {file}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// One line of a table.
struct Row {
    prefix: String,
    id: u32,
    what: String,
    status: String,
    /// The last cell without the names of tests.
    reason: String,
    /// The names between backticks in the last cell.
    tests: Vec<String>,
}

/// The rows whose id begins with `prefix`, in the order of the document.
fn rows(prefix: &str) -> Vec<Row> {
    let start = format!("| {prefix}-");
    read("docs/parity.md")
        .lines()
        .filter(|line| line.starts_with(&start))
        .map(parse)
        .collect()
}

/// The rows of all lists of behaviours.
fn behaviours() -> Vec<Row> {
    LISTS.iter().flat_map(|list| rows(list.prefix)).collect()
}

fn parse(line: &str) -> Row {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    let cells: Vec<_> = inner.split(" | ").map(str::trim).collect();
    let [id, what, status, last]: [&str; 4] = cells.try_into().expect("a row has four cells");
    let (prefix, number) = id.split_once('-').expect("an id has two parts");
    let (reason, tests): (Vec<_>, Vec<_>) =
        last.split('`').enumerate().partition(|(at, _)| at % 2 == 0);
    Row {
        prefix: prefix.to_owned(),
        id: number.parse().expect("an id ends with a number"),
        what: what.to_owned(),
        status: status.to_owned(),
        reason: reason.into_iter().map(|(_, text)| text).collect(),
        tests: tests.into_iter().map(|(_, name)| name.to_owned()).collect(),
    }
}

fn fault_of_behaviour(row: &Row) -> Option<String> {
    let fault = match row.status.as_str() {
        _ if !says_something(&row.what) => "does not say what it is about",
        "same" | "better" if row.tests.is_empty() => "names no test",
        "differs" if row.tests.is_empty() => "names no test for the difference",
        "differs" if !says_something(&row.reason) => "gives no reason for the difference",
        "later" if !row.tests.is_empty() => "has a test, so it is not for later",
        "later" if !SUBJECTS.iter().any(|word| row.reason.contains(word)) => {
            "does not say what it waits for"
        }
        "same" | "better" | "differs" | "later" => return None,
        _ => "has an unknown status",
    };
    Some(format!("{}-{:03} {fault}", row.prefix, row.id))
}

fn fault_of_quirk(row: &Row) -> Option<String> {
    let fault = match row.status.as_str() {
        _ if !says_something(&row.what) => "does not say what it is about",
        _ if !says_something(&row.reason) => "does not say what we do",
        "fixed" if row.tests.is_empty() => "names no test for the fix",
        "kept" | "fixed" | "later" => return None,
        _ => "has an unknown status",
    };
    Some(format!("Q-{:02} {fault}", row.id))
}

/// More than punctuation between names.
fn says_something(text: &str) -> bool {
    text.split_whitespace()
        .filter(|word| word.chars().any(char::is_alphabetic))
        .count()
        >= 2
}

/// The behaviours that a function is named after, as list and number.
fn ids_in(name: &str) -> Vec<(&'static str, u32)> {
    let mut ids = Vec::new();
    let mut rest = name;
    while let Some((list, number, behind)) = first_id(rest) {
        ids.push((list, number));
        rest = behind;
    }
    ids
}

/// The behaviour that a name begins with, and the rest of the name.
fn first_id(name: &str) -> Option<(&'static str, u32, &str)> {
    LISTS.iter().find_map(|list| {
        let start = format!("{}_", list.prefix.to_lowercase());
        let (digits, rest) = name.strip_prefix(&start)?.split_at_checked(3)?;
        Some((
            list.prefix,
            digits.parse().ok()?,
            rest.trim_start_matches('_'),
        ))
    })
}

#[test]
fn a_test_may_be_about_several_behaviours() {
    assert_eq!(ids_in("ipt_017_ipt_018_chains"), [("IPT", 17), ("IPT", 18)]);
    assert_eq!(ids_in("core_079_headless"), [("CORE", 79)]);
    assert!(ids_in("q_28_a_node_ports_number").is_empty());
}

#[test]
fn rows_are_read_cell_by_cell() {
    let row = parse("| CORE-007 | a name | differs | `one`, `two`: because of this |");
    assert_eq!((row.prefix.as_str(), row.id), ("CORE", 7));
    assert_eq!(row.status, "differs");
    assert_eq!(row.tests, ["one", "two"]);
    assert!(says_something(&row.reason));
    assert!(!says_something(
        &parse("| CORE-007 | a name | differs | `one`, `two` |").reason
    ));
}

#[test]
fn a_row_without_proof_is_a_fault() {
    let fault = |line| fault_of_behaviour(&parse(line));
    assert!(fault("| CORE-007 | a name | same |  |").is_some());
    assert!(fault("| CORE-007 | a name | differs | `one` |").is_some());
    assert!(fault("| CORE-007 | a name | later | some day |").is_some());
    assert!(fault("| CORE-007 | a name | later | `one` with the program |").is_some());
    assert!(fault("| CORE-007 | a name | maybe | `one` |").is_some());
    assert_eq!(
        fault("| CORE-007 | a name | later | waits for the program |"),
        None
    );
    assert_eq!(fault("| CORE-007 | a name | same | `one` |"), None);
}
