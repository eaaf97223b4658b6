//! Names of chains, and where chains are.

use std::fmt;

use ferrule_kernel::xt::Table;

/// The longest name of a chain that iptables takes.
const LONGEST: usize = 28;

/// A chain, by name. It is copied instead of counted: rules name chains more often than anything
/// else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// Zeros follow the name, so that the order is that of the names.
    bytes: [u8; LONGEST],
    len: u8,
}

/// A chain of one table.
pub type TableChain = (Table, Chain);

impl Chain {
    /// The chain of this name.
    ///
    /// # Panics
    /// The name is longer than iptables takes.
    pub const fn new(name: &str) -> Self {
        Self::generated(name, "")
    }

    /// The chain whose name has these two parts.
    ///
    /// # Panics
    /// The name is longer than iptables takes.
    pub const fn generated(prefix: &str, suffix: &str) -> Self {
        let mut bytes = [0; LONGEST];
        let (first, second) = bytes.split_at_mut(prefix.len());
        first.copy_from_slice(prefix.as_bytes());
        let (second, _) = second.split_at_mut(suffix.len());
        second.copy_from_slice(suffix.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "it is at most LONGEST")]
        let len = (prefix.len() + suffix.len()) as u8;
        Self { bytes, len }
    }

    /// The same; `None` if the name is longer than iptables takes.
    pub fn try_new(name: &str) -> Option<Self> {
        (name.len() <= LONGEST).then(|| Self::new(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let name = &self.bytes[..usize::from(self.len)];
        std::str::from_utf8(name).expect("it is made of text")
    }

    /// Whether this is its name.
    pub fn is(&self, name: &str) -> bool {
        self.bytes[..usize::from(self.len)] == *name.as_bytes()
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_compared_and_ordered_by_name() {
        let names = ["INPUT", "KUBE-SVC-", "KUBE-SVC-A", "KUBE-SVC-B", "KUBE-SVL"];
        assert!(names.map(Chain::new).is_sorted());
        assert_eq!(Chain::generated("KUBE-", "X"), Chain::new("KUBE-X"));
        assert_eq!(Chain::new("KUBE-X").as_str(), "KUBE-X");
        assert!(Chain::new("KUBE-X").is("KUBE-X"));
        assert!(!Chain::new("KUBE-X").is("KUBE-") && !Chain::new("KUBE-X").is("KUBE-XY"));
        assert_eq!(Chain::new(&"X".repeat(LONGEST)).as_str().len(), LONGEST);
    }
}
