//! Which iptables it is.

/// Where rules go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Into tables of its own, replaced whole.
    Legacy,
    /// Into `nf_tables`.
    Nft,
}

impl Flavour {
    /// What names of its programs have behind `iptables`.
    pub const fn variant(self) -> &'static str {
        match self {
            Self::Nft => "-nft",
            Self::Legacy => "-legacy",
        }
    }
}

/// A version and its flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Where rules go.
    pub flavour: Flavour,
    numbers: [u32; 3],
}

impl Version {
    /// Reads what `--version` prints: `iptables v1.8.9 (nf_tables)`. What cannot be read is very
    /// old.
    pub fn parse(text: &str) -> Self {
        let word = text
            .split_whitespace()
            .filter_map(|word| word.strip_prefix('v'))
            .find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        let mut numbers = [0; 3];
        for (number, digits) in numbers.iter_mut().zip(word.unwrap_or("").split('.')) {
            *number = digits.parse().unwrap_or(0);
        }
        Self {
            flavour: if text.contains("(nf_tables)") {
                Flavour::Nft
            } else {
                Flavour::Legacy
            },
            numbers,
        }
    }

    /// Whether it is this version or a later one.
    pub fn at_least(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.numbers >= [major, minor, patch]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipt_020_versions_and_flavours_are_read() {
        let new = Version::parse("iptables v1.8.9 (nf_tables)\n");
        assert_eq!(new.flavour, Flavour::Nft);
        assert!(new.at_least(1, 6, 2) && new.at_least(1, 8, 9) && !new.at_least(1, 8, 10));
        let old = Version::parse("iptables v1.4.21");
        assert_eq!(old.flavour, Flavour::Legacy);
        assert!(!old.at_least(1, 6, 2));
        assert!(Version::parse("ip6tables v2.0 (legacy)").at_least(1, 9, 9));
        assert!(!Version::parse("what?").at_least(0, 0, 1));
    }
}
