//! What pods do: they answer with their number and whom they see, over every protocol.
//!
//! Over TCP they then repeat whatever they receive; over UDP they add what they received.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::thread;

use ferrule_core::model::Family;

use crate::ask::{raw, transport_part};
use crate::place::Place;
use crate::sctp::Packet;

/// The port of pods.
pub const PORT: u16 = 8080;

/// Starts a pod. It answers until the test ends.
pub fn start(place: &Place, number: u8, family: Family) {
    let any: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let (tcp, udp, sctp) = place.run(move || {
        (
            TcpListener::bind((any, PORT)).unwrap(),
            UdpSocket::bind((any, PORT)).unwrap(),
            raw(family, crate::ask::SCTP),
        )
    });
    thread::spawn(move || serve_tcp(&tcp, number));
    thread::spawn(move || serve_udp(&udp, number));
    thread::spawn(move || serve_sctp(&sctp, number, family));
}

fn greeting(number: u8, client: IpAddr) -> Vec<u8> {
    format!("{number} {client}\n").into_bytes()
}

fn serve_tcp(listener: &TcpListener, number: u8) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        thread::spawn(move || -> io::Result<()> {
            stream.write_all(&greeting(number, stream.peer_addr()?.ip()))?;
            io::copy(&mut stream.try_clone()?, &mut stream)?;
            Ok(())
        });
    }
}

fn serve_udp(socket: &UdpSocket, number: u8) {
    let mut buffer = [0; 2048];
    loop {
        // A client that is gone is an error; others are not.
        let Ok((len, client)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let answer = [&greeting(number, client.ip()), &buffer[..len]].concat();
        drop(socket.send_to(&answer, client));
    }
}

fn serve_sctp(socket: &UdpSocket, number: u8, family: Family) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((len, mut client)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let Some(packet) = Packet::read(transport_part(family, &buffer[..len])) else {
            continue;
        };
        if packet.to != PORT || packet.answers.is_some() {
            continue;
        }
        let answer = Packet {
            from: packet.to,
            to: packet.from,
            tag: packet.tag.wrapping_add(1),
            answers: Some(packet.tag),
            text: greeting(number, client.ip()),
        };
        client.set_port(0);
        drop(socket.send_to(&answer.bytes(), client));
    }
}
