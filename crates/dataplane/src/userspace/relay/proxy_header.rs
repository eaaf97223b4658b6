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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_written_in_network_order() {
        let header = |client: &str, asked: &str| {
            header(client.parse().unwrap(), asked.parse().unwrap()).into_vec()
        };
        let v4 = header("192.0.2.1:258", "10.96.0.1:80");
        assert_eq!(v4.len(), 28);
        assert_eq!(
            v4[12..],
            [0x21, 0x11, 0, 12, 192, 0, 2, 1, 10, 96, 0, 1, 1, 2, 0, 80]
        );
        let v6 = header("[2001:db8::1]:258", "[fd00::1]:80");
        assert_eq!(v6.len(), 52);
        assert_eq!(v6[12..20], [0x21, 0x21, 0, 36, 0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(v6[48..], [1, 2, 0, 80]);
    }
}
