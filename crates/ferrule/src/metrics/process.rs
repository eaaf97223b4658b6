//! What the kernel says about this process, under the names every Prometheus client uses.
//!
//! Read from `/proc/self` at every scrape. A value that cannot be read is left out.

use std::fs;

use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};

use super::names::{self, Declared, Kind};

/// Clock ticks per second in `/proc`: fixed by the kernel's interface on every machine we run on.
const TICKS: f64 = 100.0;

/// Unix time of the start of this process.
pub(super) fn started() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let machine = fs::read_to_string("/proc/stat").ok()?;
    start_time(&stat, &machine)
}

/// All families that can be read.
pub(super) fn families(started: Option<f64>) -> Vec<MetricFamily> {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let (stat, status, limits) = (read("stat"), read("status"), read("limits"));
    let network = read("net/netstat");
    let open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
    [
        (&names::PROCESS_CPU, cpu_seconds(&stat)),
        (&names::PROCESS_MAX_FDS, limit(&limits, "Max open files")),
        // Reading the folder takes one itself.
        (
            &names::PROCESS_OPEN_FDS,
            open.and_then(|open| u32::try_from(open.saturating_sub(1)).ok())
                .map(f64::from),
        ),
        (&names::PROCESS_RECEIVED, octets(&network, "InOctets")),
        (&names::PROCESS_SENT, octets(&network, "OutOctets")),
        (&names::PROCESS_RESIDENT, kilobytes(&status, "VmRSS:")),
        (&names::PROCESS_VIRTUAL, kilobytes(&status, "VmSize:")),
        (
            &names::PROCESS_VIRTUAL_MAX,
            limit(&limits, "Max address space"),
        ),
        (&names::PROCESS_START, started),
    ]
    .into_iter()
    .filter_map(|(declared, value)| Some(family(declared, value?)))
    .collect()
}

/// The start alone.
pub(super) fn start_family(started: Option<f64>) -> Option<MetricFamily> {
    started.map(|started| family(&names::PROCESS_START, started))
}

/// A metric without labels, with the value it has now.
pub(super) fn family(declared: &Declared, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    let mut family = MetricFamily::default();
    if declared.kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
        family.set_field_type(MetricType::COUNTER);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
        family.set_field_type(MetricType::GAUGE);
    }
    family.set_name(declared.name.to_owned());
    family.set_help(declared.help.to_owned());
    family.set_metric(vec![metric]);
    family
}

/// The field of `/proc/self/stat` with this number, as proc(5) counts them. The second one, the
/// name of the program, may hold anything and ends at the last bracket.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS)
}

fn start_time(stat: &str, machine: &str) -> Option<f64> {
    let boot = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + stat_field(stat, 22)? / TICKS)
}

/// `VmRSS:      1234 kB`
fn kilobytes(status: &str, key: &str) -> Option<f64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(key))?;
    let number: f64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024.0)
}

/// The soft limit. Without one it is the largest number, as in other clients.
fn limit(limits: &str, key: &str) -> Option<f64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(key))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(2_f64.powi(64)),
        number => number.parse().ok(),
    }
}

/// Lines come in pairs: names, then numbers.
fn octets(netstat: &str, key: &str) -> Option<f64> {
    let mut pair = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, numbers) = (pair.next()?, pair.next()?);
    let (_, number) = names
        .split_whitespace()
        .zip(numbers.split_whitespace())
        .find(|(name, _)| *name == key)?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a) b (c)) S 1 42 42 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 3 0 \
                        12345 1000 200 18446744073709551615 1 1 0";

    #[test]
    fn processor_time_and_start_are_read_past_any_name() {
        assert_eq!(cpu_seconds(STAT), Some(2.0));
        assert_eq!(
            start_time(STAT, "cpu 1 2\nbtime 1700000000\nprocesses 7\n"),
            Some(1_700_000_123.45)
        );
    }

    #[test]
    fn limits_may_be_absent() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 4096                 files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(2_f64.powi(64)));
        assert_eq!(limit(limits, "Max dreams"), None);
    }

    #[test]
    fn memory_and_network_are_read_by_name() {
        assert_eq!(
            kilobytes("Name:\tx\nVmRSS:\t   12 kB\n", "VmRSS:"),
            Some(12_288.0)
        );
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\n\
                       IpExt: 0 77 88\n";
        assert_eq!(octets(netstat, "InOctets"), Some(77.0));
        assert_eq!(octets(netstat, "OutOctets"), Some(88.0));
        assert_eq!(octets("", "OutOctets"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        assert_eq!(families(started()).len(), 9);
    }
}
