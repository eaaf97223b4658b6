//! Pods: each a process with a small HTTP server that answers with its name, in a network of its own.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::load;
use crate::stage;

/// Where pods listen.
pub const PORT: u16 = 8080;

/// How long a pod may take to answer for the first time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A running pod.
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    process: Child,
}

impl Pod {
    /// Starts a pod and waits until it answers.
    pub fn start(name: &str, address: Ipv4Addr) -> Result<Self> {
        stage::connect(name, address)?;
        let process = Command::new("ip")
            .args(["netns", "exec", name])
            .arg(std::env::current_exe()?)
            .args(["pod", name])
            .spawn()
            .with_context(|| format!("cannot start pod {name}"))?;
        let pod = Self {
            name: name.to_owned(),
            address,
            process,
        };
        let begun = Instant::now();
        while load::ask(SocketAddr::from((address, PORT))).is_err() {
            if begun.elapsed() > TIMEOUT {
                bail!("pod {name} does not answer");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(pod)
    }

    /// Ends a pod.
    pub fn stop(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        stage::disconnect(&self.name)
    }
}

/// What a pod does all its life.
pub fn serve(name: &str) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    for stream in listener.incoming() {
        let name = name.to_owned();
        // A client that goes away harms only itself.
        std::thread::spawn(move || stream.and_then(|stream| answer(stream, &name)));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&part[..count]),
        }
    }
    let length = name.len() + 1;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}\n"
    )?;
    // The client closes first, so that ports are worn out on its side only.
    while stream.read(&mut part)? > 0 {}
    Ok(())
}
