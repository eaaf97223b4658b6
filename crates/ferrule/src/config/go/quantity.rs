//! Amounts as Kubernetes writes them: `512`, `1.5Ki`, `200m`, `2e3`.
//!
//! Read into billionths and printed canonically: whole numbers with the largest suffix that keeps
//! them whole, in the family of suffixes they were written with. Only sizes of buffers are read
//! this way, so amounts beyond what 64 bits hold are capped, as Kubernetes caps them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount, and how it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    /// Billionths.
    nano: i128,
    style: Style,
}

/// The family of suffixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Style {
    /// `n u m k M G T P E`
    #[default]
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
    /// `e3`
    Exponent,
}

/// Billionths in one.
const ONE: i128 = 1_000_000_000;

/// The largest amount there is.
const MOST: i128 = (i64::MAX as i128) * ONE;

const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// The amount in whole units, rounded up.
    pub fn value(&self) -> i64 {
        i64::try_from(div_up(self.nano, ONE)).unwrap_or(i64::MAX)
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Reads a number with an optional suffix.
    ///
    /// # Errors
    /// What is wrong with the text, in the words of Kubernetes.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let unsigned = text.trim_start_matches(['+', '-']);
        if text.is_empty() || text.len() - unsigned.len() > 1 {
            return Err(QuantityError::Format);
        }
        let at = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(at);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        let (style, scale) = scale_of(suffix).ok_or(QuantityError::Suffix)?;
        let nano = scaled(whole, fraction, scale).min(MOST);
        let nano = if text.starts_with('-') { -nano } else { nano };
        Ok(Self { nano, style })
    }
}

/// What a suffix multiplies with.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

fn scale_of(suffix: &str) -> Option<(Style, Scale)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(word, _)| *word == suffix) {
        return Some((Style::Decimal, Scale::Ten(*power)));
    }
    let steps = (0_u32..).zip(BINARY);
    if let Some((step, _)) = steps.skip(1).find(|(_, word)| *word == suffix) {
        return Some((Style::Binary, Scale::Two(10 * step)));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Style::Exponent, Scale::Ten(exponent.parse().ok()?)))
}

/// `whole.fraction` times `scale`, in billionths, rounded up, capped instead of overflowing.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    // More digits than this are beyond the cap or below a billionth.
    let fraction = &fraction[..fraction.len().min(18)];
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let Ok(number) = (if digits.is_empty() { "0" } else { digits }).parse::<i128>() else {
        return MOST;
    };
    let below = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let (factor, power) = match scale {
        Scale::Ten(power) => (1, power.saturating_add(9).saturating_sub(below)),
        Scale::Two(bits) => (1_i128 << bits, 9_i32.saturating_sub(below)),
    };
    let Some(number) = number.checked_mul(factor) else {
        return MOST;
    };
    let ten = 10_i128.checked_pow(power.unsigned_abs());
    match ten {
        _ if number == 0 => 0,
        Some(ten) if power >= 0 => number.checked_mul(ten).unwrap_or(MOST),
        Some(ten) => div_up(number, ten),
        None if power >= 0 => MOST,
        None => 1,
    }
}

/// Divides away from zero.
fn div_up(number: i128, by: i128) -> i128 {
    number / by + (number % by).signum()
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        if self.style == Style::Binary && self.nano.abs() >= 1024 * ONE {
            let mut number = div_up(self.nano, ONE);
            let mut step = 0;
            while number % 1024 == 0 && step + 1 < BINARY.len() {
                number /= 1024;
                step += 1;
            }
            return write!(f, "{number}{}", BINARY[step]);
        }
        let mut number = self.nano;
        let mut step = 0;
        while number % 1000 == 0 && step + 1 < DECIMAL.len() {
            number /= 1000;
            step += 1;
        }
        let (word, power) = DECIMAL[step];
        match self.style {
            Style::Exponent if power != 0 => write!(f, "{number}e{power}"),
            _ => write!(f, "{number}{word}"),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber)
    }
}

/// A quantity may be written as a bare number.
struct TextOrNumber;

impl de::Visitor<'_> for TextOrNumber {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 1Ki")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text).map_err(E::custom)
    }

    fn visit_unit<E>(self) -> Result<Quantity, E> {
        Ok(Quantity::default())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }
}

/// A text that is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not begin with a number.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// What follows the number means nothing.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_printed_canonically() {
        for (text, printed, value) in [
            ("0", "0", 0),
            ("0Ki", "0", 0),
            ("512", "512", 512),
            ("1000", "1k", 1000),
            ("1024", "1024", 1024),
            ("1Ki", "1Ki", 1024),
            ("1.5Ki", "1536", 1536),
            ("2048Ki", "2Mi", 2 << 20),
            ("0.5Ki", "512", 512),
            ("1.5", "1500m", 2),
            ("100m", "100m", 1),
            ("3M", "3M", 3_000_000),
            ("2e3", "2e3", 2000),
            ("20e2", "2e3", 2000),
            ("-5", "-5", -5),
            ("+5", "5", 5),
            ("00012", "12", 12),
            ("1n", "1n", 1),
            ("99999999999999999999E", "9223372036854775807", i64::MAX),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(quantity.to_string(), printed, "{text}");
            assert_eq!(quantity.value(), value, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "x", "--1", "+", ".", "1.2.3"] {
            assert_eq!(Quantity::parse(text), Err(QuantityError::Format), "{text}");
        }
        for text in ["1x", "1KI", "1 Ki", "1e", "1ex", "1Kii"] {
            assert_eq!(Quantity::parse(text), Err(QuantityError::Suffix), "{text}");
        }
    }
}
