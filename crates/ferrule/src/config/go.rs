//! Text the way Go reads and prints it: quoting, booleans, numbers, `host:port`.
//!
//! kube-proxy's flags and files are read by Go's standard library, and people search for the
//! messages it gives. Here are the same rules and the same words, as far as flags and files can
//! reach them. Pure functions; [`duration`] and [`quantity`] hold the two larger formats.

use std::fmt::Write as _;

pub mod duration;
pub mod quantity;

pub use duration::GoDuration;
pub use quantity::Quantity;

/// A text in double quotes, with everything unprintable escaped (Go's `%q`).
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c.is_ascii_control() => push(&mut out, format_args!("\\x{:02x}", u32::from(c))),
            c if is_unprintable(c) && u32::from(c) > 0xffff => {
                push(&mut out, format_args!("\\U{:08x}", u32::from(c)));
            }
            c if is_unprintable(c) => push(&mut out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Characters that would confuse a reader or a terminal: controls, odd blanks, marks that turn
/// the direction of writing.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}')
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments)
        .expect("writing to a String cannot fail");
}

/// Several quoted texts in brackets, separated by blanks (Go's `%q` of a list).
pub fn quote_list<S: AsRef<str>>(texts: &[S]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

/// A number or boolean could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strconv.{function}: parsing {}: {fault}", quote(.text))]
pub struct NumberError {
    function: &'static str,
    text: String,
    fault: &'static str,
}

impl NumberError {
    fn syntax(function: &'static str, text: &str) -> Self {
        let text = text.to_owned();
        Self {
            function,
            text,
            fault: "invalid syntax",
        }
    }

    fn range(function: &'static str, text: &str) -> Self {
        Self {
            fault: "value out of range",
            ..Self::syntax(function, text)
        }
    }
}

/// Reads a boolean: `1 t T TRUE true True`, `0 f F FALSE false False`.
///
/// # Errors
/// Anything else.
pub fn parse_bool(text: &str) -> Result<bool, NumberError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(NumberError::syntax("ParseBool", text)),
    }
}

/// Reads a 32-bit integer; `0x`, `0o`, `0b`, a leading `0` and `_` between digits mean what they
/// mean in Go source.
///
/// # Errors
/// No number, or one that does not fit.
pub fn parse_int32(text: &str) -> Result<i32, NumberError> {
    const FUNCTION: &str = "ParseInt";
    let syntax = || NumberError::syntax(FUNCTION, text);
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = radix_of(digits);
    let plain = without_underscores(digits, radix != 10).ok_or_else(syntax)?;
    if plain.is_empty() || !plain.chars().all(|c| c.is_digit(radix)) {
        return Err(syntax());
    }
    let range = || NumberError::range(FUNCTION, text);
    let value = i64::from_str_radix(&plain, radix).map_err(|_| range())?;
    i32::try_from(if negative { -value } else { value }).map_err(|_| range())
}

/// The base that a prefix announces, and what follows the prefix.
fn radix_of(digits: &str) -> (u32, &str) {
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    }
}

/// Drops `_` where Go allows it: between digits, or between a prefix and a digit.
fn without_underscores(digits: &str, prefixed: bool) -> Option<String> {
    let misplaced =
        digits.ends_with('_') || digits.contains("__") || (digits.starts_with('_') && !prefixed);
    (!misplaced).then(|| digits.replace('_', ""))
}

/// Reads a decimal number below two to the power of `bits`.
///
/// # Errors
/// No number, or one that does not fit.
pub fn parse_uint(text: &str, bits: u32) -> Result<u32, NumberError> {
    const FUNCTION: &str = "ParseUint";
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NumberError::syntax(FUNCTION, text));
    }
    text.parse::<u32>()
        .ok()
        .filter(|value| u64::from(*value) < 1 << bits)
        .ok_or_else(|| NumberError::range(FUNCTION, text))
}

/// Reads a floating-point number.
///
/// # Errors
/// No number, or one that does not fit.
pub fn parse_float32(text: &str) -> Result<f32, NumberError> {
    const FUNCTION: &str = "ParseFloat";
    let value: f32 = text
        .parse()
        .map_err(|_| NumberError::syntax(FUNCTION, text))?;
    let spelled_out = text
        .trim_start_matches(['+', '-'])
        .starts_with(['i', 'I', 'n', 'N']);
    if value.is_finite() || spelled_out {
        Ok(value)
    } else {
        Err(NumberError::range(FUNCTION, text))
    }
}

/// A floating-point number with as few digits as tell it apart (Go's `%g`).
pub fn format_float32(value: f32) -> String {
    if !value.is_finite() {
        return match value {
            v if v.is_nan() => "NaN".to_owned(),
            v if v > 0.0 => "+Inf".to_owned(),
            _ => "-Inf".to_owned(),
        };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    value.to_string()
}

/// Splits `host:port`; an IPv6 host stands in brackets.
///
/// # Errors
/// What is wrong with the address, in the words of Go's `net` package.
pub fn split_host_port(address: &str) -> Result<(&str, &str), String> {
    let fault = |what: &str| format!("address {address}: {what}");
    let Some(colon) = address.rfind(':') else {
        return Err(fault("missing port in address"));
    };
    let (host, searched) = if address.starts_with('[') {
        let end = address
            .find(']')
            .ok_or_else(|| fault("missing ']' in address"))?;
        if end + 1 == address.len() {
            return Err(fault("missing port in address"));
        }
        if end + 1 != colon {
            // Either `]` is followed by a colon that is not the last one, or by something else.
            let what = if address.as_bytes()[end + 1] == b':' {
                "too many colons in address"
            } else {
                "missing port in address"
            };
            return Err(fault(what));
        }
        (&address[1..end], (1, end + 1))
    } else {
        let host = &address[..colon];
        if host.contains(':') {
            return Err(fault("too many colons in address"));
        }
        (host, (0, 0))
    };
    if address[searched.0..].contains('[') {
        return Err(fault("unexpected '[' in address"));
    }
    if address[searched.1..].contains(']') {
        return Err(fault("unexpected ']' in address"));
    }
    Ok((host, &address[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_escapes_what_cannot_be_seen() {
        assert_eq!(quote("a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(quote("1\n2\t3\u{1b}"), r#""1\n2\t3\x1b""#);
        assert_eq!(quote("é世\u{a0}\u{202e}"), r#""é世\u00a0\u202e""#);
        assert_eq!(quote_list(&["a", "b c"]), r#"["a" "b c"]"#);
    }

    #[test]
    fn booleans_are_go_literals() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        for text in ["", "yes", "tRUE", " true"] {
            let error = parse_bool(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("strconv.ParseBool: parsing \"{text}\": invalid syntax")
            );
        }
    }

    #[test]
    fn integers_are_read_in_the_base_they_announce() {
        for (text, value) in [
            ("0", 0),
            ("-999", -999),
            ("+7", 7),
            ("0x1F", 31),
            ("017", 15),
            ("0o17", 15),
            ("0b101", 5),
            ("0x1_0", 16),
            ("1_000", 1000),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(parse_int32(text), Ok(value), "{text}");
        }
        for text in ["", "abc", "1.5", "0x", "--1", "1_", "_1", "09", " 1"] {
            let error = parse_int32(text).unwrap_err().to_string();
            assert!(error.ends_with("invalid syntax"), "{text}: {error}");
        }
        let error = parse_int32("2147483648").unwrap_err().to_string();
        assert_eq!(
            error,
            "strconv.ParseInt: parsing \"2147483648\": value out of range"
        );
    }

    #[test]
    fn verbosity_fits_31_bits() {
        assert_eq!(parse_uint("2147483647", 31), Ok(2_147_483_647));
        let error = parse_uint("2147483648", 31).unwrap_err().to_string();
        assert!(error.ends_with("value out of range"), "{error}");
        let error = parse_uint("-1", 31).unwrap_err().to_string();
        assert_eq!(error, "strconv.ParseUint: parsing \"-1\": invalid syntax");
    }

    #[test]
    fn floats_are_printed_shortly() {
        for (text, printed) in [
            ("5", "5"),
            ("0.1", "0.1"),
            ("-1", "-1"),
            ("1e6", "1e+06"),
            ("123456", "123456"),
            ("0.00001", "1e-05"),
            ("1234567", "1.234567e+06"),
        ] {
            let value = parse_float32(text).unwrap();
            assert_eq!(format_float32(value), printed, "{text}");
        }
        assert_eq!(
            parse_float32("x").unwrap_err().to_string(),
            "strconv.ParseFloat: parsing \"x\": invalid syntax"
        );
        assert_eq!(
            parse_float32("1e99").unwrap_err().to_string(),
            "strconv.ParseFloat: parsing \"1e99\": value out of range"
        );
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        assert_eq!(split_host_port("1.2.3.4:80"), Ok(("1.2.3.4", "80")));
        assert_eq!(split_host_port("[::1]:80"), Ok(("::1", "80")));
        assert_eq!(split_host_port(":80"), Ok(("", "80")));
        for (address, fault) in [
            ("foo", "missing port in address"),
            ("[::1]", "missing port in address"),
            ("::1", "too many colons in address"),
            ("[::1]:80:81", "too many colons in address"),
            ("[::1:80", "missing ']' in address"),
            ("a[b:80", "unexpected '[' in address"),
            ("a]b:80", "unexpected ']' in address"),
        ] {
            assert_eq!(
                split_host_port(address),
                Err(format!("address {address}: {fault}"))
            );
        }
    }
}
