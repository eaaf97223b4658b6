//! Kernel settings that mode ipvs relies on.

use std::io;

use ferrule_kernel::ipvs::{Ipvs, Timeouts};

use crate::host::{Host, SettingError, Version};
use crate::said;

/// The first kernel with `conn_reuse_mode`.
const HAS_REUSE_MODE: Version = Version(4, 1);
/// The first kernel that schedules a connection from a reused port anew without delay.
const REUSES_AT_ONCE: Version = Version(5, 9);

/// Why a kernel cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A setting could not be written.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The kernel's release cannot be read.
    #[error("cannot read the kernel's release")]
    Release(#[source] io::Error),
    /// The kernel has no IPVS.
    #[error("can't use the IPVS proxier: this kernel has no IPVS (module ip_vs)")]
    Missing,
    /// IPVS could not be asked.
    #[error("can't use the IPVS proxier: no answer from the kernel")]
    Unanswered(#[source] io::Error),
}

/// Sets what IPVS relies on, and timeouts that are not 0. Returns what could not be done but does
/// not matter enough to stop.
///
/// # Errors
/// See [`PrepareError`].
pub fn prepare(
    host: &Host,
    strict_arp: bool,
    timeouts: &Timeouts,
) -> Result<Vec<String>, PrepareError> {
    // The settings are there once the module is.
    let ipvs = Ipvs::load().map_err(|error| PrepareError::Unanswered(said(error)))?;
    let mut ipvs = ipvs.ok_or(PrepareError::Missing)?;
    let version = host.kernel_version().map_err(PrepareError::Release)?;
    let mut notes = set(host, version, strict_arp)?;
    if *timeouts != Timeouts::default()
        && let Err(error) = ipvs.set_timeouts(timeouts)
    {
        notes.push(format!("timeouts: {}", said(error)));
    }
    Ok(notes)
}

/// Sets what IPVS relies on in this version of the kernel.
pub(super) fn set(
    host: &Host,
    version: Version,
    strict_arp: bool,
) -> Result<Vec<String>, SettingError> {
    let mut notes = Vec::new();
    host.set_sysctl("net/ipv4/vs/conntrack", 1)?;
    reuse(host, version, &mut notes)?;
    host.set_sysctl("net/ipv4/vs/expire_nodest_conn", 1)?;
    host.set_sysctl("net/ipv4/vs/expire_quiescent_template", 1)?;
    host.set_sysctl("net/ipv4/ip_forward", 1)?;
    if strict_arp {
        host.set_sysctl("net/ipv4/conf/all/arp_ignore", 1)?;
        host.set_sysctl("net/ipv4/conf/all/arp_announce", 2)?;
    }
    Ok(notes)
}

/// What becomes of a connection from a port whose former connection is still remembered.
fn reuse(host: &Host, version: Version, notes: &mut Vec<String>) -> Result<(), SettingError> {
    const NAME: &str = "net/ipv4/vs/conn_reuse_mode";
    if version < HAS_REUSE_MODE {
        notes
            .push("connections from reused ports stay with their endpoint before Linux 4.1".into());
    } else if version < REUSES_AT_ONCE {
        // Scheduling it anew would cost a second each.
        host.set_sysctl(NAME, 0)?;
    } else if host.sysctl(NAME).is_some_and(|value| value == 0) {
        // Left by a program for older kernels: connections would never spread to new endpoints.
        host.set_sysctl(NAME, 1)?;
    }
    Ok(())
}

/// Whether a connection from a reused port may go to an endpoint that must get no new ones.
pub(super) fn keeps_reused_ports(version: Version) -> bool {
    version < REUSES_AT_ONCE
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const VS: &str = "proc/sys/net/ipv4/vs";

    /// A machine with the settings that a kernel begins with.
    fn machine(root: &Path) -> Host {
        for (folder, files) in [
            (
                VS,
                &[
                    ("conntrack", "0"),
                    ("conn_reuse_mode", "1"),
                    ("expire_nodest_conn", "0"),
                    ("expire_quiescent_template", "0"),
                ][..],
            ),
            ("proc/sys/net/ipv4", &[("ip_forward", "0")]),
            (
                "proc/sys/net/ipv4/conf/all",
                &[("arp_ignore", "0"), ("arp_announce", "0")],
            ),
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
            for (name, value) in files {
                fs::write(root.join(folder).join(name), format!("{value}\n")).unwrap();
            }
        }
        Host::new(root)
    }

    fn value(root: &Path, name: &str) -> String {
        let text = fs::read_to_string(root.join("proc/sys").join(name)).unwrap();
        text.trim().to_owned()
    }

    #[test]
    fn ipvs_005_settings_end_up_right_and_are_not_written_twice() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let host = machine(root);
        set(&host, Version(6, 1), false).unwrap();
        for name in [
            "net/ipv4/vs/conntrack",
            "net/ipv4/vs/expire_nodest_conn",
            "net/ipv4/vs/expire_quiescent_template",
            "net/ipv4/ip_forward",
        ] {
            assert_eq!(value(root, name), "1", "{name}");
        }
        // Written by us they have no line end; by the kernel they do.
        let path = root.join(VS).join("conntrack");
        fs::write(&path, "1\n").unwrap();
        set(&host, Version(6, 1), false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn ipvs_006_reused_ports_follow_the_version_of_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let host = machine(root);
        let name = "net/ipv4/vs/conn_reuse_mode";
        let with = |version, before: &str| {
            fs::write(root.join("proc/sys").join(name), before).unwrap();
            let notes = set(&host, version, false).unwrap();
            (value(root, name), notes.len())
        };
        assert_eq!(with(Version(4, 0), "1"), ("1".into(), 1));
        assert_eq!(with(Version(4, 1), "1"), ("0".into(), 0));
        assert_eq!(with(Version(5, 8), "1"), ("0".into(), 0));
        assert_eq!(with(Version(5, 9), "1"), ("1".into(), 0));
        assert_eq!(with(Version(6, 1), "0"), ("1".into(), 0));
        assert_eq!(with(Version(6, 1), "3"), ("3".into(), 0));
        assert!(keeps_reused_ports(Version(5, 8)) && !keeps_reused_ports(Version(5, 10)));
    }

    #[test]
    fn ipvs_007_arp_is_strict_only_where_it_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let host = machine(root);
        let both = |root| {
            let name = |name: &str| format!("net/ipv4/conf/all/{name}");
            [name("arp_ignore"), name("arp_announce")].map(|name| value(root, &name))
        };
        set(&host, Version(6, 1), false).unwrap();
        assert_eq!(both(root), ["0", "0"]);
        set(&host, Version(6, 1), true).unwrap();
        assert_eq!(both(root), ["1", "2"]);
    }

    #[test]
    fn ipvs_008_a_setting_that_cannot_be_written_is_named() {
        let root = tempfile::tempdir().unwrap();
        let host = machine(root.path());
        fs::remove_file(root.path().join(VS).join("expire_nodest_conn")).unwrap();
        let error = set(&host, Version(6, 1), false).unwrap_err().to_string();
        assert!(
            error.contains("net.ipv4.vs.expire_nodest_conn to 1"),
            "{error}"
        );
    }
}
