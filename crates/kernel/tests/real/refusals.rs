//! What the kernel says when it does not agree.

use std::io::ErrorKind;

use ferrule_kernel::Family;
use ferrule_kernel::nft::{
    Batch, BatchError, Chain, Element, Expr, Field, Nft, Reg, Rule, Set, Table, Value, Verdict,
};

use crate::support::in_namespace;

fn prepare() -> Nft {
    let mut nft = Nft::open().unwrap();
    let mut batch = Batch::new(Family::V4, "t");
    batch.add_table(&Table::new("t"));
    batch.add_chain(&Chain::new("a"));
    batch.add_chain(&Chain::new("b"));
    batch.add_set(&Set::verdicts("s", [Field::Mark]));
    batch.add_elements("s", [element(7, "a")]);
    nft.commit(&batch).unwrap();
    nft
}

fn element(key: u32, chain: &str) -> Element {
    Element::verdict(Value::new().number(key), Verdict::Goto(chain.into()))
}

#[test]
fn the_step_and_the_element_are_named_and_nothing_is_changed() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "t");
        batch.add_chain(&Chain::new("c"));
        // Far behind the first message of the step, 7 leads elsewhere already.
        let many = (100..3000).map(|key| element(key, "a"));
        batch.add_elements("s", many.chain([element(7, "b")]));
        batch.add_chain(&Chain::new("d"));
        let error = nft.commit(&batch).unwrap_err();
        let BatchError::Refused {
            step,
            element,
            what,
            faults,
            source,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((step, element, faults.len()), (1, Some(2900), 1));
        assert_eq!(what, "add elements of s");
        assert_eq!(source.kind(), ErrorKind::AlreadyExists);
        assert_eq!(nft.chains(Family::V4, "t").unwrap().len(), 2);
        assert_eq!(nft.elements(Family::V4, "t", "s").unwrap().len(), 1);
    });
}

#[test]
fn many_refusals_are_counted() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "t");
        for _ in 0..5000 {
            batch.delete_chain("missing");
        }
        let error = nft.commit(&batch).unwrap_err();
        let BatchError::Refused {
            step,
            faults,
            source,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((step, faults.len()), (0, 5000));
        assert_eq!(source.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_chain_in_use_is_not_deleted() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "t");
        batch.delete_chain("a");
        let error = nft.commit(&batch).unwrap_err();
        let BatchError::Refused { source, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), ErrorKind::ResourceBusy);
        // In one batch with what leads to it, it is.
        let mut batch = Batch::new(Family::V4, "t");
        batch.delete_elements("s", [element(7, "a")]);
        batch.delete_chain("a");
        nft.commit(&batch).unwrap();
    });
}

#[test]
fn a_change_by_somebody_else_is_a_conflict() {
    in_namespace(|| {
        let mut nft = prepare();
        let generation = nft.generation().unwrap().id;
        let mut batch = Batch::new(Family::V4, "t");
        batch.expect_generation(generation);
        batch.add_chain(&Chain::new("c"));
        crate::support::run("nft", &["add", "table", "ip6", "somebody-else"]);
        let error = nft.commit(&batch).unwrap_err();
        assert!(matches!(error, BatchError::Conflict), "{error}");
        batch.expect_generation(nft.generation().unwrap().id);
        let commit = nft.commit(&batch).unwrap();
        assert_eq!(commit.generation, Some(nft.generation().unwrap().id));
    });
}

#[test]
fn a_loop_is_refused() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "t");
        let jump = |to: &str| vec![Expr::Verdict(Verdict::Jump(to.into()))];
        batch.add_chain(&Chain::base(
            "base",
            ferrule_kernel::nft::ChainKind::Filter,
            ferrule_kernel::nft::Hook::Input,
            0,
        ));
        batch.add_rule(&Rule::new("base", jump("a")));
        batch.add_rule(&Rule::new("a", jump("b")));
        batch.add_rule(&Rule::new("b", jump("a")));
        let error = nft.commit(&batch).unwrap_err();
        let BatchError::Refused { step, source, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((step, source.kind()), (3, ErrorKind::TooManyLinks));
        assert_eq!(nft.chains(Family::V4, "t").unwrap().len(), 2);
    });
}

#[test]
fn what_does_not_exist_is_not_found() {
    in_namespace(|| {
        let mut nft = Nft::open().unwrap();
        assert!(nft.sets(Family::V4, "t").unwrap_err().is_not_found());
        assert!(
            nft.elements(Family::V4, "t", "s")
                .unwrap_err()
                .is_not_found()
        );
        assert_eq!(nft.snapshot(Family::V4, "t").unwrap(), None);
    });
}

#[test]
fn the_expression_of_a_rule_is_named() {
    in_namespace(|| {
        let mut nft = prepare();
        let mut batch = Batch::new(Family::V4, "t");
        let load = Expr::source_address(Family::V4, Reg::FIRST);
        let unknown = Expr::Unknown {
            name: "teleport".into(),
            data: Box::default(),
        };
        batch.add_rule(&Rule::new("a", vec![load.clone()]));
        batch.add_rule(&Rule::new("a", vec![load, unknown]));
        let error = nft.commit(&batch).unwrap_err();
        let text = "the kernel refused step 1: add rule to a with teleport";
        assert_eq!(error.to_string(), text);
        assert_eq!(nft.rules(Family::V4, "t").unwrap().len(), 0);
    });
}
