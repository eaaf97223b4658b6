//! The desired state as a table.

use std::io::{self, Write};
use std::net::Ipv6Addr;

use super::rows::Row;

/// Endpoints shown per row; whoever needs more asks for JSON.
const SHOWN: usize = 3;

/// Writes one line per address.
pub fn write(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "No Service has an address on this node.");
    }
    let header = ["SERVICE", "KIND", "ADDRESS", "ACTION", "ENDPOINTS", "NOTES"].map(str::to_owned);
    write_aligned(
        out,
        std::iter::once(header)
            .chain(rows.iter().map(cells))
            .collect(),
    )
}

/// Writes addresses that are no longer so (`-`) and how they are now (`+`).
pub fn write_difference(out: &mut impl Write, gone: &[&Row], new: &[&Row]) -> io::Result<()> {
    let signed = |sign: &str, row: &Row| {
        let mut cells = cells(row);
        cells[0].insert_str(0, sign);
        cells
    };
    let gone = gone.iter().map(|row| signed("- ", row));
    let new = new.iter().map(|row| signed("+ ", row));
    write_aligned(out, gone.chain(new).collect())
}

fn write_aligned(out: &mut impl Write, lines: Vec<[String; 6]>) -> io::Result<()> {
    let mut widths = [0; 6];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    for line in lines {
        let padded = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 6] {
    let name = match row.port_name.as_str() {
        "" => row.service.clone(),
        name => format!("{}:{name}", row.service),
    };
    let address = match row.address.parse::<Ipv6Addr>() {
        Ok(ip) => format!("[{ip}]:{}/{}", row.port, row.protocol),
        Err(_) => format!("{}:{}/{}", row.address, row.port, row.protocol),
    };
    [
        name,
        row.kind.to_owned(),
        address,
        row.action.to_owned(),
        endpoints(&row.endpoints),
        notes(row),
    ]
}

fn endpoints(all: &[String]) -> String {
    let shown = all
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ");
    match all.len() {
        0 => "-".to_owned(),
        count if count > SHOWN => format!("{shown} +{}", count - SHOWN),
        _ => shown,
    }
}

fn notes(row: &Row) -> String {
    let mut notes = Vec::new();
    if row.address == "*" {
        notes.push(format!("{} addresses of the node", row.family));
    }
    if row.traffic_policy == "Local" {
        notes.push("local endpoints only".to_owned());
    }
    if let Some(inside) = &row.in_cluster_endpoints {
        notes.push(format!("from inside: {}", endpoints(inside)));
    }
    if let Some(seconds) = row.affinity_seconds {
        notes.push(format!("sticky {seconds}s"));
    }
    if !row.source_ranges.is_empty() {
        notes.push(format!("only from {}", row.source_ranges.join(" ")));
    }
    match row.masquerade {
        _ if row.action == "reject" => {}
        "always" => notes.push("masquerade".to_owned()),
        "outside" => notes.push("masquerade from outside the pod network".to_owned()),
        "node" => notes.push("masquerade from this node".to_owned()),
        _ => {}
    }
    if let (Some(port), Some(local), "LoadBalancerIP" | "NodePort") = (
        row.health_check_node_port,
        row.health_check_local_endpoints,
        row.kind,
    ) {
        notes.push(format!("health check on {port} reports {local}"));
    }
    notes.join("; ")
}
