//! The whole lab, put together: control plane, worlds, and the order in which they come up.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use tokio::runtime::{Builder, Handle};

use crate::barrier::Barrier;
use crate::control::{self, Control};
use crate::tools::Tools;
use crate::world::{Who, World, WorldKey};

/// Everything that runs.
pub struct Lab {
    pub control: Control,
    pub worlds: Vec<World>,
    pub tools: Tools,
    barrier: Barrier,
}

impl Lab {
    /// Brings everything up and returns when every proxy programs what is written.
    pub fn start(tools: &Tools, keys: &[WorldKey], folder: &Path) -> Result<Self> {
        if keys.iter().any(|key| key.program == "ferrule") {
            tools.require_ferrule()?;
        }
        let runtime = runtime()?;
        control::lay_network()?;
        // The API server takes longest, so networks are built while it starts.
        let (control, worlds) = std::thread::scope(|scope| {
            let control = scope.spawn(|| Control::start(tools, folder, &runtime));
            let build = |(number, key): (usize, &WorldKey)| {
                World::build(key.clone(), number, folder, &runtime)
            };
            let worlds: Result<Vec<_>> = keys.iter().enumerate().map(build).collect();
            let control = control.join();
            (
                control.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                worlds,
            )
        });
        let mut lab = Self {
            control: control?,
            worlds: worlds?,
            tools: tools.clone(),
            barrier: Barrier::default(),
        };
        lab.start_proxies(Who::Own, &Value::Null)?;
        Ok(lab)
    }

    /// Starts the proxies anew with these settings and waits until they work.
    pub fn start_proxies(&mut self, who: Who, settings: &Value) -> Result<()> {
        if who == Who::Other {
            self.tools.require_ferrule()?;
        }
        for world in &mut self.worlds {
            world.start_proxies(&self.tools, who, settings)?;
        }
        self.settle(false)
    }

    /// As [`Lab::start_proxies`], for a restart with the same settings.
    pub fn restart_proxies(&mut self, settings: &Value) -> Result<()> {
        for world in &mut self.worlds {
            world.restart_proxies(&self.tools, Who::Own, settings)?;
        }
        self.settle(false)
    }

    /// Waits until every proxy has programmed what was written.
    pub fn settle(&mut self, nodes_changed: bool) -> Result<()> {
        self.control.check()?;
        let (api, worlds) = (&self.control.api, &mut self.worlds);
        if nodes_changed {
            self.barrier.pass_nodes(api, worlds)
        } else {
            self.barrier.pass(api, worlds)
        }
    }

    /// As [`Lab::settle`], for the proxies of one world.
    pub fn settle_in(&mut self, world: usize) -> Result<()> {
        let worlds = &mut self.worlds[world..=world];
        self.barrier.pass(&self.control.api, worlds)
    }

    /// As [`Lab::settle`], but what follows the rules a moment later may not be done yet: health
    /// answers, forgotten flows, metrics.
    pub fn glance(&mut self) -> Result<()> {
        self.barrier.move_once(&self.control.api, &mut self.worlds)
    }
}

/// Where pods answer and requests to the API server run: one thread that lives as long as the
/// process.
pub fn runtime() -> Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("runtime".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}
