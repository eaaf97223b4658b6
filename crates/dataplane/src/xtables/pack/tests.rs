//! How steps are distributed over transactions, and what becomes of them.

use ferrule_kernel::nft::Held;

use super::super::rule::{Part, Target};
use super::super::sample::{LAYOUT, MARK, SERVICES, key, to};
use super::*;

/// Knows these rules.
#[derive(Default)]
struct Rules(Vec<Held<nft::Rule>>);

impl Known for Rules {
    fn listing(&self) -> Option<&Listing> {
        None
    }

    fn rows(&mut self, _: Table, chain: Chain) -> Result<Rows, LinkError> {
        Ok(Rows::new(&chain.to_string(), self.0.clone()))
    }
}

/// A Service's chain that jumps to that of its endpoint.
fn pair(stage: &mut Stage, key: &PortKey) -> Rule {
    let name = key.service.name();
    let chooser = Chain::generated("KUBE-SVC-", name);
    let endpoint = Chain::generated("KUBE-SEP-", name);
    stage.rewrite(chooser, [(Some(key), &to(endpoint))]);
    stage.rewrite(endpoint, [(Some(key), &to(MARK))]);
    to(chooser)
}

/// What each transaction does, in words.
fn described(
    enough: usize,
    stage: &Stage,
    known: &mut Rules,
) -> Result<Vec<Vec<String>>, LinkError> {
    let mut all = Vec::new();
    packs_of(enough, &LAYOUT, stage, Family::V4, known, &mut |_, pack| {
        assert_eq!(pack.batch.len(), pack.marks.len());
        let steps = 0..pack.batch.len();
        all.push(steps.map(|step| pack.batch.describe(step)).collect());
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn chains_are_written_before_the_jumps_to_them() {
    let mut stage = Stage::new(Table::Nat);
    let one = key("one");
    let way = pair(&mut stage, &one);
    stage.rewrite(SERVICES, [(Some(&one), &way)]);
    stage.rewrite(MARK, [(None, &Rule::new([], Target::SetMark(1)))]);
    stage.remove("KUBE-SVC-OLD");
    let whole = described(usize::MAX, &stage, &mut Rules::default()).unwrap();
    let [whole] = &whole[..] else {
        panic!("{whole:?}");
    };
    let rules: Vec<_> = whole
        .iter()
        .filter_map(|step| step.strip_prefix("add rule to "))
        .map(|name| &name[..8])
        .collect();
    assert_eq!(rules, ["KUBE-MAR", "KUBE-SEP", "KUBE-SVC", "KUBE-SER"]);
    assert_eq!(
        whole[whole.len() - 2..],
        ["flush chain KUBE-SVC-OLD", "delete chain KUBE-SVC-OLD"]
    );
    // However small transactions are: the same, and each chain in one of them.
    let pieces = described(1, &stage, &mut Rules::default()).unwrap();
    assert!(pieces.len() > 4);
    assert_eq!(pieces.concat(), *whole);
    for piece in &pieces {
        for step in piece {
            if let Some(chain) = step.strip_prefix("add rule to ") {
                assert!(piece.contains(&format!("flush chain {chain}")), "{piece:?}");
            }
        }
    }
}

#[test]
fn jumps_are_added_before_or_behind_all_rules_of_a_base_chain() {
    let mut stage = Stage::new(Table::Nat);
    let prerouting = Chain::new("PREROUTING");
    stage.rules = vec![
        (None, Step::Insert(prerouting, 1, to(SERVICES))),
        (None, Step::Append(prerouting, to(MARK))),
    ];
    let base = base_chains::base_chain(Table::Nat, "PREROUTING").unwrap();
    let rule = |rule| encode::rule(&rule, "PREROUTING", Family::V4).unwrap();
    let mut wanted = Batch::new(kernel_family(Family::V4), "nat");
    wanted.ensure_chain(&base);
    wanted.insert_rule(&rule(to(SERVICES)));
    wanted.ensure_chain(&base);
    wanted.add_rule(&rule(to(MARK)));
    let mut batches = Vec::new();
    let family = Family::V4;
    packs(
        &LAYOUT,
        &stage,
        family,
        &mut Rules::default(),
        &mut |_, pack| {
            batches.push(format!("{:?}", pack.batch));
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(batches, [format!("{wanted:?}")]);
}

fn row(handle: u64, rule: &Rule) -> Held<nft::Rule> {
    Held {
        handle,
        table: "nat".into(),
        object: encode::rule(rule, "KUBE-SERVICES", Family::V4).unwrap(),
    }
}

#[test]
fn single_rules_come_and_go_where_they_stand() {
    let rule = |text: &str| Rule::new([Part::Comment(text.into())], Target::Accept);
    let rules_of_chain = || {
        Rules(vec![
            row(7, &rule("a")),
            row(8, &rule("b")),
            row(9, &rule("a")),
        ])
    };
    let edits = |steps: Vec<Step>| {
        let mut stage = Stage::new(Table::Nat);
        stage.rules = steps.into_iter().map(|step| (None, step)).collect();
        described(usize::MAX, &stage, &mut rules_of_chain()).map(|packs| packs.concat())
    };
    // The first of two equal ones goes; what was put before it is not in the way.
    let steps = edits(vec![
        Step::Insert(SERVICES, 1, rule("c")),
        Step::Insert(SERVICES, 5, rule("d")),
        Step::Delete(SERVICES, rule("a")),
        Step::Delete(SERVICES, rule("a")),
    ]);
    assert_eq!(
        steps.unwrap(),
        [
            "add rule to KUBE-SERVICES",
            "add rule to KUBE-SERVICES",
            "delete rule 7 of KUBE-SERVICES",
            "delete rule 9 of KUBE-SERVICES"
        ]
    );
    // Rules that should be installed and are not.
    for step in [
        Step::Delete(SERVICES, rule("x")),
        Step::Insert(SERVICES, 5, rule("c")),
    ] {
        assert!(matches!(edits(vec![step]), Err(LinkError::Changed(_))));
    }
}

#[test]
fn a_rule_that_cannot_be_encoded_is_an_error() {
    let mut stage = Stage::new(Table::Nat);
    let long = Rule::new([Part::Comment("x".repeat(256).into())], Target::Accept);
    stage.rewrite(SERVICES, [(None, &long)]);
    let result = described(usize::MAX, &stage, &mut Rules::default());
    assert!(matches!(result, Err(LinkError::Encoding)));
}
