//! What answers in a pod: on each of its ports, over TCP and UDP, its name and who asked.
//!
//! A TCP client gets the answer once when it connects and again for everything it sends; a UDP client for
//! every datagram. One line: name, the client's address as seen here, and the port it reached.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use crate::netns::Netns;

/// Running servers. Dropping them without [`Servers::stop`] leaves them to the runtime.
pub struct Servers {
    tasks: Vec<JoinHandle<()>>,
    runtime: Handle,
}

impl Servers {
    /// Opens all ports in the given network.
    pub fn start(name: &str, ports: &[u16], place: &Netns, runtime: &Handle) -> Result<Self> {
        let name: Arc<str> = name.into();
        let mut tasks = Vec::new();
        for &port in ports {
            let (tcp, udp) = place
                .run(|| open(port))?
                .with_context(|| format!("{name} cannot listen on {port}"))?;
            let _context = runtime.enter();
            let tcp = TcpListener::from_std(tcp)?;
            let udp = UdpSocket::from_std(udp)?;
            tasks.push(runtime.spawn(serve_tcp(tcp, Arc::clone(&name), port)));
            tasks.push(runtime.spawn(serve_udp(udp, Arc::clone(&name), port)));
        }
        Ok(Self {
            tasks,
            runtime: runtime.clone(),
        })
    }

    /// Closes everything, open connections too, before it returns.
    pub fn stop(self) {
        for task in self.tasks {
            task.abort();
            // It was aborted, so it has no result; what counts is that its sockets are closed.
            let _aborted = self.runtime.block_on(task);
        }
    }
}

/// Both sockets of a port, for both families.
fn open(port: u16) -> Result<(std::net::TcpListener, std::net::UdpSocket)> {
    let tcp = std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let udp = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    Ok((tcp, udp))
}

fn answer(name: &str, client: SocketAddr, port: u16) -> String {
    format!("{name} {} {port}\n", client.ip().to_canonical())
}

async fn serve_tcp(listener: TcpListener, name: Arc<str>, port: u16) {
    // Connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, client)) = accepted {
                connections.spawn(talk(stream, answer(&name, client, port)));
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

/// Answers once, and again for everything that comes, until the client has enough.
async fn talk(mut stream: TcpStream, answer: String) {
    let mut received = [0; 512];
    loop {
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        match stream.read(&mut received).await {
            Ok(count) if count > 0 => {}
            _ => return,
        }
    }
}

async fn serve_udp(socket: UdpSocket, name: Arc<str>, port: u16) {
    let mut received = [0; 512];
    loop {
        // Errors are reports about earlier answers nobody wanted any more.
        if let Ok((_, client)) = socket.recv_from(&mut received).await {
            let answer = answer(&name, client, port);
            let _unwanted = socket.send_to(answer.as_bytes(), client).await;
        }
    }
}
