//! The header of the PROXY protocol, version 2, by which an endpoint learns who its client is.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2.

use std::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Version 2, on behalf of a client.
const VERSION_AND_COMMAND: u8 = 0x21;

/// The header for a TCP connection from `client` to `asked`. Both are of one family.
pub(super) fn header(client: SocketAddr, asked: SocketAddr) -> Box<[u8]> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.push(VERSION_AND_COMMAND);
    match (client, asked) {
        (SocketAddr::V4(client), SocketAddr::V4(asked)) => {
            bytes.extend([0x11, 0, 12]);
            bytes.extend(client.ip().octets());
            bytes.extend(asked.ip().octets());
        }
        (client, asked) => {
            let octets = |address: SocketAddr| match address {
                SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
                SocketAddr::V6(v6) => v6.ip().octets(),
            };
            bytes.extend([0x21, 0, 36]);
            bytes.extend(octets(client));
            bytes.extend(octets(asked));
        }
    }
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(asked.port().to_be_bytes());
    bytes.into()
}
