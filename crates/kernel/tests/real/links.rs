//! Interfaces that go.

use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::ipvs::Ipvs;
use ferrule_kernel::route::{Link, Route};

use crate::support::{in_namespace, run};

#[test]
fn an_interface_says_its_kind_and_is_deleted_by_number() {
    in_namespace(|| {
        run("ip", &["link", "add", "bundle", "type", "veth"]);
        let mut route = Route::open().unwrap();
        let find = |route: &mut Route, name: &str| -> Option<Link> {
            let links = route.links().unwrap();
            links.into_iter().find(|link| link.name == name)
        };
        let link = find(&mut route, "bundle").unwrap();
        assert_eq!(link.kind.as_deref(), Some("veth"));
        let lo = find(&mut route, "lo").unwrap();
        assert_eq!(lo.kind, None);
        route.delete_link(link.index).unwrap();
        assert_eq!(find(&mut route, "bundle"), None);
        for index in [link.index, lo.index] {
            let error = route.delete_link(index).unwrap_err();
            assert!(matches!(error, RequestError::Refused { .. }), "{error:?}");
        }
    });
}

#[test]
fn virtual_servers_are_flushed_where_the_kernel_has_them() {
    in_namespace(|| {
        if let Some(mut ipvs) = Ipvs::open().unwrap() {
            ipvs.flush().unwrap();
        }
    });
}
