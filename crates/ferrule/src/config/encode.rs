//! The effective configuration as text: YAML for `--write-config-to`, JSON for `/configz`.
//!
//! Both are byte for byte what kube-proxy writes: people compare such files. The YAML has sorted
//! keys, dashes that are not indented, and quotes only where another reader would misread; the
//! JSON has the order of [`KubeProxyConfiguration`].

use serde_json::Value;

use super::Config;
use super::v1alpha1::KubeProxyConfiguration;

/// The file that describes `config`.
pub fn yaml(config: &Config) -> String {
    let tree = serde_json::to_value(KubeProxyConfiguration::from(config))
        .expect("strings, numbers and lists are always JSON");
    let mut out = String::new();
    write_children(&tree, 0, &mut out);
    out
}

/// The value below `kubeproxy.config.k8s.io` at `/configz`.
pub fn json(config: &Config) -> String {
    serde_json::to_string(&KubeProxyConfiguration::from(config))
        .expect("strings, numbers and lists are always JSON")
        // Go's writer thinks of browsers.
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}

/// The whole body of `/configz`.
pub fn configz(config: &Config) -> String {
    format!("{{\"kubeproxy.config.k8s.io\":{}}}", json(config))
}

/// Writes the entries of a map or the items of a list, each on lines of its own.
fn write_children(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) => {
            // Sorted here, because whether the map is depends on a feature any crate may enable.
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (at, (key, value)) in entries.into_iter().enumerate() {
                // The first entry of a list's item stands beside the dash.
                if at > 0 || out.is_empty() || out.ends_with('\n') {
                    out.extend(std::iter::repeat_n(' ', indent));
                }
                out.push_str(&scalar(key));
                out.push(':');
                write_value(value, indent, out);
            }
        }
        Value::Array(items) => {
            for item in items {
                out.extend(std::iter::repeat_n(' ', indent));
                out.push('-');
                match item {
                    Value::Object(map) if !map.is_empty() => {
                        out.push(' ');
                        write_children(item, indent + 2, out);
                    }
                    item => write_value(item, indent, out),
                }
            }
        }
        _ => {}
    }
}

/// Writes a value after its key or dash.
fn write_value(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            write_children(value, indent + 2, out);
            return;
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            write_children(value, indent, out);
            return;
        }
        Value::Object(_) => out.push_str(" {}"),
        Value::Array(_) => out.push_str(" []"),
        Value::Null => out.push_str(" null"),
        Value::Bool(value) => out.push_str(if *value { " true" } else { " false" }),
        Value::Number(number) => {
            out.push(' ');
            out.push_str(&number.to_string());
        }
        Value::String(text) => {
            out.push(' ');
            out.push_str(&scalar(text));
        }
    }
    out.push('\n');
}

/// A string with the quotes it needs: none; single ones where its characters would be taken for
/// structure; double ones where it would be taken for another type or cannot be shown.
fn scalar(text: &str) -> String {
    if text.chars().any(char::is_control) {
        // JSON's escapes are YAML's.
        Value::from(text).to_string()
    } else if reads_as_another_type(text) {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    } else if looks_like_structure(text) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        text.to_owned()
    }
}

/// Whether YAML 1.1 reads a bare text as null, boolean, number, time or merge key.
fn reads_as_another_type(text: &str) -> bool {
    const WORDS: [&str; 28] = [
        "", "~", "null", "Null", "NULL", "<<", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON",
        "n", "N", "no", "No", "NO", "off", "Off", "OFF", "true", "True", "TRUE", "false", "False",
        "FALSE",
    ];
    WORDS.contains(&text) || is_number(text) || is_sexagesimal(text) || is_date(text)
}

fn is_number(text: &str) -> bool {
    let bare = text.strip_prefix(['-', '+']).unwrap_or(text);
    let infinite = [".inf", ".Inf", ".INF"].contains(&bare);
    if infinite || [".nan", ".NaN", ".NAN"].contains(&text) {
        return true;
    }
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let digits = bare.replace('_', "");
    let in_base = |prefix: &str, base| {
        digits
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_digit(base)))
    };
    in_base("0x", 16)
        || in_base("0o", 8)
        || in_base("0b", 2)
        || (digits.bytes().any(|b| b.is_ascii_digit()) && digits.parse::<f64>().is_ok())
}

/// `1:30` was ninety once.
fn is_sexagesimal(text: &str) -> bool {
    let bare = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = bare.split(':');
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let first = parts
        .next()
        .is_some_and(|part| is_digits(&part.replace('_', "")));
    let rest: Vec<_> = parts.collect();
    let (last, middle) = match rest.split_last() {
        Some((last, middle)) => (last.split('.').next().unwrap_or(last), middle),
        None => return false,
    };
    let below_sixty = |part: &str| {
        is_digits(part) && part.len() <= 2 && (part.len() == 1 || part.as_bytes()[0] < b'6')
    };
    first && below_sixty(last) && middle.iter().all(|part| below_sixty(part))
}

/// Begins like `2006-1-2`.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let digits = |part: Option<&str>, most: usize| {
        part.is_some_and(|part| {
            (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
        })
    };
    text.split('-').next().is_some_and(|year| year.len() == 4)
        && digits(parts.next(), 4)
        && digits(parts.next(), 2)
        && parts
            .next()
            .is_some_and(|day| digits(day.split(['T', 't', ' ']).next(), 2))
}

/// Whether a bare text would be taken for part of YAML's structure.
fn looks_like_structure(text: &str) -> bool {
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let ends_word = characters.peek().is_none_or(|next| *next == ' ');
        let is_special = match (before, c) {
            (None, '?' | ':' | '-') | (Some(_), ':') => ends_word,
            (None, c) => "#,[]{}&*!|>'\"%@` ".contains(c),
            (Some(' '), '#') => true,
            _ => false,
        };
        if is_special {
            return true;
        }
        before = Some(c);
    }
    text.ends_with(' ') || text.starts_with("---") || text.starts_with("...")
}

#[cfg(test)]
mod tests;
