//! With which endpoint the table remembers a client.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;

use ferrule_core::desired::Endpoint;
use ferrule_core::model::{Family, Port, PortKey};
use ferrule_kernel::nft::{Nft, Value};

use super::names::{self, TABLE};
use crate::affinity::Binding;
use crate::{kernel_family, said};

/// The endpoint of this Service port that the client stays with, if it is one of these.
///
/// # Errors
/// What the kernel said.
pub fn binding(
    key: &PortKey,
    endpoints: &[(IpAddr, Port)],
    client: IpAddr,
) -> io::Result<Option<Binding>> {
    let family = kernel_family(Family::of(client));
    let mut nft = Nft::open()?;
    let present = nft.sets(family, TABLE).map_err(said)?;
    let label = names::label(key);
    let wanted = Value::default().address(client);
    for (ip, port) in endpoints {
        let endpoint = Endpoint {
            ip: *ip,
            port: *port,
            weight: 1,
            local: false,
            in_cluster_pool: true,
            in_local_pool: false,
        };
        let set = names::affinity_set(&label, &endpoint, NonZeroU32::MIN);
        if !present.iter().any(|held| held.object.name == set.name) {
            continue;
        }
        let clients = nft.elements(family, TABLE, &set.name).map_err(said)?;
        let found = clients.into_iter().find(|element| element.key == wanted);
        if let Some(element) = found {
            return Ok(Some(Binding {
                endpoint: (*ip, *port),
                left: element.expires,
            }));
        }
    }
    Ok(None)
}
