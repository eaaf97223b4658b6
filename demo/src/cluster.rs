//! The cluster as ferrule reads it: a folder of manifests, changed as a control plane would.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::pod::PORT;

/// Whether a pod may be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It may.
    Ready,
    /// It is about to go: better ask others.
    Terminating,
}

/// The folder of manifests.
pub struct Cluster {
    folder: PathBuf,
    pods: Vec<(Ipv4Addr, State)>,
}

impl Cluster {
    /// A copy of these manifests, which can be changed.
    pub fn copy(from: &Path) -> Result<Self> {
        let folder = PathBuf::from("/run/manifests");
        fs::create_dir(&folder)?;
        let entries = fs::read_dir(from).with_context(|| from.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            fs::copy(entry.path(), folder.join(entry.file_name()))?;
        }
        Ok(Self {
            folder,
            pods: Vec::new(),
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a pod, or changes the state of one.
    pub fn set(&mut self, address: Ipv4Addr, state: State) -> Result<()> {
        match self.pods.iter_mut().find(|(known, _)| *known == address) {
            Some((_, known)) => *known = state,
            None => self.pods.push((address, state)),
        }
        self.write()
    }

    /// Removes a pod.
    pub fn remove(&mut self, address: Ipv4Addr) -> Result<()> {
        self.pods.retain(|(known, _)| *known != address);
        self.write()
    }

    /// Names that begin with a dot are not read, so that the slice changes at once.
    fn write(&self) -> Result<()> {
        let new = self.folder.join(".slice.yaml");
        fs::write(&new, slice(&self.pods)?)?;
        Ok(fs::rename(new, self.folder.join("slice.yaml"))?)
    }
}

fn slice(pods: &[(Ipv4Addr, State)]) -> Result<String> {
    let mut text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  \
         namespace: shop\n  labels: {{kubernetes.io/service-name: web}}\naddressType: IPv4\n\
         ports:\n  - {{name: http, port: {PORT}}}\nendpoints:\n"
    );
    for (address, state) in pods {
        let going = *state == State::Terminating;
        writeln!(
            text,
            "  - addresses: [{address}]\n    nodeName: node-a\n    conditions: \
             {{ready: {}, serving: true, terminating: {going}}}",
            !going
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_go_are_not_ready() {
        let address = Ipv4Addr::new(10, 244, 1, 2);
        let text = slice(&[(address, State::Ready), (address, State::Terminating)]).unwrap();
        assert!(text.contains("{ready: true, serving: true, terminating: false}"));
        assert!(text.contains("{ready: false, serving: true, terminating: true}"));
    }
}
