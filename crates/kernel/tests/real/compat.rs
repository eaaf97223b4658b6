//! Rules as iptables keeps them, and single rules where they stand.

use ferrule_kernel::Family;
use ferrule_kernel::nft::compat::{Extension, Recent, state};
use ferrule_kernel::nft::{
    Batch, Chain, ChainKind, Expr, Hook, Nft, Policy, Reg, Rule, Table, Value, Verdict,
};

use crate::support::in_namespace;

fn comment(text: &str) -> Expr {
    Expr::Match(Extension::comment(text).unwrap())
}

fn rule(text: &str) -> Rule {
    Rule::new("c", vec![comment(text)])
}

fn prepare() -> Nft {
    let mut nft = Nft::open().unwrap();
    let mut batch = Batch::new(Family::V4, "nat");
    batch.add_table(&Table::new("nat"));
    batch.add_chain(&Chain::new("c"));
    nft.commit(&batch).unwrap();
    nft
}

fn comments(nft: &mut Nft) -> Vec<String> {
    let rules = nft.rules_of(Family::V4, "nat", "c").unwrap();
    let texts = rules.iter().map(|held| match &held.object.expressions[0] {
        Expr::Match(extension) => extension.as_comment().unwrap().into_owned(),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

#[test]
fn matches_and_targets_come_back_as_they_were_sent() {
    in_namespace(|| {
        let mut nft = prepare();
        let expressions = vec![
            Expr::protocol(Reg::FIRST),
            Expr::equal(Reg::FIRST, Value::new().protocol(6)),
            comment("a b"),
            Expr::Match(Extension::tcp()),
            Expr::Match(Extension::conntrack(state::NEW | state::DNAT, true)),
            Expr::Match(Extension::local(false)),
            Expr::Match(Extension::random(1 << 30)),
            Expr::Match(Extension::recent("list", Recent::Check(60)).unwrap()),
            Expr::Target(Extension::mark(0x4000, 0x4000)),
        ];
        let sent = Rule {
            protocol: Some(6),
            ..Rule::new("c", expressions)
        };
        let mut batch = Batch::new(Family::V4, "nat");
        batch.add_rule(&sent);
        nft.commit(&batch).unwrap();
        let read = nft.rules_of(Family::V4, "nat", "c").unwrap();
        assert_eq!(read[0].object.expressions, sent.expressions);
        // Its match asks for the protocol.
        let mut batch = Batch::new(Family::V4, "nat");
        batch.add_rule(&Rule {
            protocol: None,
            ..sent
        });
        nft.commit(&batch).unwrap_err();
    });
}

#[test]
fn rules_are_put_before_others_and_their_handles_told() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "nat");
        batch.add_rule(&rule("a"));
        batch.ask_for_handle();
        batch.add_rule(&rule("b"));
        batch.add_rule(&rule("d"));
        batch.ask_for_handle();
        let commit = nft.commit(&batch).unwrap();
        let steps: Vec<_> = commit.handles.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [0, 2]);
        let (a, d) = (commit.handles[0].1, commit.handles[1].1);
        let mut batch = Batch::new(Family::V4, "nat");
        batch.insert_rule_before(d, &rule("c"));
        batch.delete_rule("c", a);
        let commit = nft.commit(&batch).unwrap();
        assert!(commit.handles.is_empty());
        assert_eq!(comments(&mut nft), ["b", "c", "d"]);
        let mut batch = Batch::new(Family::V4, "nat");
        batch.insert_rule_before(a, &rule("x"));
        nft.commit(&batch).unwrap_err();
    });
}

#[test]
fn a_chain_that_exists_keeps_its_policy() {
    in_namespace(|| {
        let mut nft = prepare();
        let chain = Chain::base("IN", ChainKind::Filter, Hook::Input, 0);
        let mut closed = chain.clone();
        closed.base.as_mut().unwrap().policy = Policy::Drop;
        let policy = |nft: &mut Nft| {
            let held = nft.chain(Family::V4, "nat", "IN").unwrap()?;
            held.object.base.map(|base| base.policy)
        };
        assert_eq!(policy(&mut nft), None);
        for (step, wanted) in [(&chain, Policy::Accept), (&closed, Policy::Accept)] {
            let mut batch = Batch::new(Family::V4, "nat");
            batch.ensure_chain(step);
            nft.commit(&batch).unwrap();
            assert_eq!(policy(&mut nft), Some(wanted));
        }
        let mut batch = Batch::new(Family::V4, "nat");
        batch.add_chain(&closed);
        nft.commit(&batch).unwrap();
        let mut batch = Batch::new(Family::V4, "nat");
        batch.ensure_chain(&chain);
        batch.add_rule(&Rule::new("IN", vec![Expr::Verdict(Verdict::Accept)]));
        nft.commit(&batch).unwrap();
        assert_eq!(policy(&mut nft), Some(Policy::Drop));
    });
}
