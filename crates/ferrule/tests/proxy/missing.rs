//! A mode that this kernel cannot have.

use super::support::*;

#[test]
fn ipvs_001_a_kernel_that_cannot_have_the_mode_ends_the_start_and_no_other_is_chosen() {
    in_namespace(|| {
        // The scheduler is missing on every kernel, and IPVS itself on most.
        let examples = examples();
        let words = [
            "--proxy-mode=ipvs",
            "--ipvs-scheduler=nonsense",
            "--manifests",
            examples.to_str().unwrap(),
        ];
        let (code, _, err) = fails(&[&words[..], &UNTOUCHED].concat());
        assert_eq!(code, Some(1), "{err}");
        let last = err.lines().last().unwrap_or_default();
        assert!(last.contains("can't use the IPVS proxier: "), "{err}");
        let missing = ["IPVS (module ip_vs)", "module ip_vs_nonsense"];
        assert!(missing.iter().any(|what| last.contains(what)), "{err}");
        let rules = ["iptables-save", "ip6tables-save"].map(|save| run(save, &[]));
        let rules = rules.concat() + &ruleset();
        assert!(!rules.to_lowercase().contains("kube"), "{rules}");
    });
}
