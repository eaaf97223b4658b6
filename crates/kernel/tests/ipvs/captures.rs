//! Messages about virtual servers as they travelled, kept in `testdata` for tests that need no
//! kernel.

use ferrule_kernel::ipvs::{Change, Ipvs};
use ferrule_kernel::socket::Protocol;
use ferrule_testbed::with_ipvs;

use crate::tap::{Tap, captured, pick};
use crate::{TCP, destination, key, server};

#[test]
fn what_the_kernel_says_about_a_server_and_its_destinations_is_what_was_kept() {
    with_ipvs(|_| {
        let mut ipvs = Ipvs::load_over(Tap::open(Protocol::Generic))
            .unwrap()
            .unwrap();
        let key = key("10.96.0.1", TCP, 80);
        let changes = [
            Change::AddServer(server(key)),
            Change::AddDestination(key, destination("10.1.0.1", 8080)),
        ];
        assert!(ipvs.commit(&changes).unwrap().is_empty());
        let tap = |ipvs: &mut Ipvs<Tap>| std::mem::take(&mut ipvs.transport_mut().received);
        tap(&mut ipvs);
        let number = ipvs.number();
        let listed = ipvs.servers().unwrap();
        let caption = "A virtual server, as dumped by Linux 6.1.";
        captured("ipvs-server.hex", caption, &pick(&tap(&mut ipvs), number));
        assert_eq!(listed.len(), 1);
        let listed = ipvs.destinations(&key).unwrap();
        let caption = "A destination of a virtual server, as dumped by Linux 6.1.";
        captured(
            "ipvs-destination.hex",
            caption,
            &pick(&tap(&mut ipvs), number),
        );
        assert_eq!(listed.len(), 1);
    });
}
