//! What went through a virtual server or to a destination.

use crate::wire::{Attribute, Malformed};

/// Counters since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// Numbers are 32 or 64 bits wide: older kernels know only a mixture. Rates are not read.
pub(super) fn read(stats: &Attribute<'_>) -> Result<Stats, Malformed> {
    let mut read = Stats::default();
    for attr in stats.nested() {
        let attr = attr?;
        let field = match attr.kind {
            1 => &mut read.connections,
            2 => &mut read.packets_in,
            3 => &mut read.packets_out,
            4 => &mut read.bytes_in,
            5 => &mut read.bytes_out,
            _ => continue,
        };
        *field = match attr.payload.len() {
            4 => attr.u32_ne()?.into(),
            _ => u64::from_ne_bytes(attr.array()?),
        };
    }
    Ok(read)
}
