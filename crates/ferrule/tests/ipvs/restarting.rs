//! A crash while endpoints shut down.

use ferrule_testbed::Lab;

use crate::cluster::{Cluster, IPVS, connect, goes_on};

#[test]
fn ipvs_067_after_a_crash_in_the_middle_of_a_removal_weights_are_right_and_connections_live() {
    Lab::both(|lab| {
        let cluster = Cluster::new(lab, &[(1, true), (2, true)]);
        let mut proxy = cluster.proxy(IPVS);
        let (stream, by) = connect(lab, &lab.pod);
        let other = 3 - by;
        let mut closing = [(by, 0), (other, 1)];
        closing.sort_unstable();
        cluster.endpoints(&[(by, false), (other, true)]);
        cluster.until(&proxy, &closing);

        // It goes on where the one before ended.
        proxy.signal("KILL");
        proxy.wait();
        goes_on(&stream).unwrap();
        proxy = cluster.proxy(IPVS);
        cluster.until(&proxy, &closing);
        goes_on(&stream).unwrap();
        assert_eq!(connect(lab, &lab.pod).1, other);

        // What is ready again when it comes back gets connections again.
        proxy.signal("KILL");
        proxy.wait();
        cluster.endpoints(&[(1, true), (2, true)]);
        proxy = cluster.proxy(IPVS);
        cluster.until(&proxy, &[(1, 1), (2, 1)]);
        goes_on(&stream).unwrap();

        // And what it did not live to see the end of goes in the end.
        cluster.endpoints(&[(by, false), (other, true)]);
        cluster.until(&proxy, &closing);
        proxy.signal("KILL");
        proxy.wait();
        proxy = cluster.proxy(IPVS);
        cluster.until(&proxy, &closing);
        goes_on(&stream).unwrap();
        drop(stream);
        cluster.until(&proxy, &[(other, 1)]);
        assert!(!proxy.log().contains("Failed to"), "{}", proxy.log());
    });
}
