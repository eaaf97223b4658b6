//! Counters that rules of iptables can name.

use ferrule_kernel::nfacct::{Count, Nfacct};

use crate::support::in_namespace;

#[test]
fn a_counter_is_made_once_and_read() {
    in_namespace(|| {
        let mut nfacct = Nfacct::open().unwrap();
        assert_eq!(nfacct.get("packets").unwrap(), None);
        nfacct.ensure("packets").unwrap();
        nfacct.ensure("packets").unwrap();
        assert_eq!(nfacct.get("packets").unwrap(), Some(Count::default()));
        assert_eq!(nfacct.get("others").unwrap(), None);
    });
}
