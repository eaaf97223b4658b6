//! Secrets are left out: whatever looks like one, wherever it stands.
//!
//! In: a file of the bundle. Out: the same with [`LEFT_OUT`] in place of tokens, keys, certificates,
//! passwords and values of annotations. The proxy itself has hardly any of these; but log lines and
//! messages repeat what others wrote.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;

/// What stands in place of a secret.
pub const LEFT_OUT: &str = "[left out]";

/// Names of values that are secrets end so.
const SECRET: [&str; 13] = [
    "accesskey",
    "apikey",
    "api-key",
    "authorization",
    "authority-data",
    "certificate-data",
    "credential",
    "credentials",
    "key-data",
    "passwd",
    "password",
    "secret",
    "token",
];

/// The file of this name without secrets.
pub fn redacted(file: &str, text: &str) -> String {
    if Path::new(file).extension() == Some(OsStr::new("json"))
        && let Ok(mut value) = serde_json::from_str::<Value>(text)
    {
        redact_value(&mut value);
        // People read it, and it was valid a moment ago.
        return serde_json::to_string_pretty(&value).unwrap_or_default();
    }
    redact_lines(text)
}

fn redact_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact_lines(text),
        Value::Array(items) => items.iter_mut().for_each(redact_value),
        Value::Object(fields) => {
            let is_annotation = |field: &Value| {
                let field = field.as_str();
                field.is_some_and(|field| field.contains("annotations"))
            };
            let quotes = fields.get("field").is_some_and(is_annotation);
            for (name, value) in fields.iter_mut() {
                let is_text = value.is_string();
                if is_text && (is_secret(name) || (quotes && name == "message")) {
                    *value = LEFT_OUT.into();
                } else {
                    redact_value(value);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn redact_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_pem = false;
    for line in text.split_inclusive('\n') {
        if in_pem {
            in_pem = !line.contains("-----END");
            continue;
        }
        let line = match line.split_once("-----BEGIN") {
            Some((before, rest)) => {
                in_pem = !rest.contains("-----END");
                let end = if line.ends_with('\n') { "\n" } else { "" };
                format!("{}{LEFT_OUT}{end}", redact_line(before))
            }
            None => redact_line(line),
        };
        out.push_str(&line);
    }
    out
}

fn redact_line(line: &str) -> String {
    // What a line says after the name of an annotation may be its value.
    if let Some(at) = line.find("annotations[") {
        let end = line[at..]
            .find(']')
            .map_or(line.len(), |length| at + length + 1);
        let newline = if line.ends_with('\n') { "\n" } else { "" };
        return format!("{} {LEFT_OUT}{newline}", redact_words(&line[..end]));
    }
    redact_words(line)
}

fn redact_words(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = after_login(rest) {
            // `https://name:password@host`
            out.push_str("://");
            out.push_str(LEFT_OUT);
            rest = after;
        } else if is_separator(first) {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let (word, after) = rest.split_at(rest.find(is_separator).unwrap_or(rest.len()));
            if is_token(word) {
                out.push_str(LEFT_OUT);
            } else {
                out.push_str(word);
            }
            rest = match value_of(word, after) {
                Some(value) => {
                    out.push_str(&after[..after.len() - value.len()]);
                    redact_secret(value, &mut out)
                }
                None => after,
            };
        }
    }
    out
}

/// Between words. Signs that stand within tokens are none.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || "\"'`,;:=()[]{}<>@\\".contains(c)
}

/// Behind `://name:password`, from the `@` on.
fn after_login(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("://")?;
    let host = &rest[..rest.find(['/', '"', '\'', ' ']).unwrap_or(rest.len())];
    Some(&rest[host.rfind('@')?..])
}

/// What begins with the secret behind a word, if the word announces one.
fn value_of<'a>(word: &str, after: &'a str) -> Option<&'a str> {
    if word.eq_ignore_ascii_case("bearer") {
        return after.strip_prefix(' ');
    }
    // Names of objects have a slash in them.
    if !is_secret(word) || word.contains('/') {
        return None;
    }
    let value = after.trim_start_matches(['"', '\'', '\\']);
    let value = value.strip_prefix([':', '='])?;
    Some(value.trim_start_matches(' ')).filter(|value| !value.is_empty())
}

/// Writes something else in place of the secret that the text begins with; what follows.
fn redact_secret<'a>(value: &'a str, out: &mut String) -> &'a str {
    // As a whole where it is quoted, also within another quotation.
    for quote in ["\\\"", "\"", "'"] {
        if let Some(rest) = value.strip_prefix(quote) {
            out.push_str(quote);
            out.push_str(LEFT_OUT);
            return &rest[rest.find(quote).unwrap_or(rest.len())..];
        }
    }
    for scheme in ["Bearer ", "Basic "] {
        let begins = value.get(..scheme.len());
        if begins.is_some_and(|begins| begins.eq_ignore_ascii_case(scheme)) {
            out.push_str(scheme);
            return redact_secret(&value[scheme.len()..], out);
        }
    }
    out.push_str(LEFT_OUT);
    let end = value.find(|c: char| c.is_whitespace() || ",;&\"}".contains(c));
    &value[end.unwrap_or(value.len())..]
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|end| name.ends_with(end))
}

/// A JSON web token: three parts in base64, of which the first is an object.
fn is_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.len() > 20 && word.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_left_out_and_everything_else_stays() {
        for (text, expected) in [
            ("token: hunter2 end", "token: [left out] end"),
            ("bearerToken=hunter2", "bearerToken=[left out]"),
            ("password=\"hunter2\", x=1", "password=\"[left out]\", x=1"),
            (
                "{\\\"token\\\":\\\"hunter2\\\"}",
                "{\\\"token\\\":\\\"[left out]\\\"}",
            ),
            (
                "client-key-data: aHVudGVy\n",
                "client-key-data: [left out]\n",
            ),
            (
                "Authorization: Bearer hunter2 x",
                "Authorization: Bearer [left out] x",
            ),
            ("sent Bearer hunter2", "sent Bearer [left out]"),
            (
                "https://joe:hunter2@10.0.0.1:6443/x",
                "https://[left out]@10.0.0.1:6443/x",
            ),
            ("password: 'hunter2, hunter2' x", "password: '[left out]' x"),
            ("see https://10.0.0.1/x@y", "see https://10.0.0.1/x@y"),
            (
                "a eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln b",
                "a [left out] b",
            ),
            (
                "x -----BEGIN KEY----- hunter2 -----END KEY-----",
                "x [left out]",
            ),
            (
                "-----BEGIN KEY-----\nhunter2\n-----END KEY-----\nafter",
                "[left out]\nafter",
            ),
            (
                "field=\"metadata.annotations[x.dev/y]\" problem=\"hunter2\"\n",
                "field=\"metadata.annotations[x.dev/y] [left out]\n",
            ),
            (
                "/var/run/secrets/token: gone",
                "/var/run/secrets/token: gone",
            ),
            ("shop/token:http is held", "shop/token:http is held"),
            (
                "10.96.0.1:80/TCP = [fd00::1]:80",
                "10.96.0.1:80/TCP = [fd00::1]:80",
            ),
            ("a basic rule", "a basic rule"),
        ] {
            assert_eq!(redact_lines(text), expected);
        }
    }

    #[test]
    fn json_keeps_its_form() {
        let text = r#"{"issues":[{"field":"metadata.annotations[a]","message":"\"hunter2\" is no word"},
            {"field":"spec.ports[0]","message":"0 is no port"}],"token":"hunter2","tokens":3}"#;
        let value: Value = serde_json::from_str(&redacted("x.json", text)).unwrap();
        assert_eq!(value["issues"][0]["message"], LEFT_OUT);
        assert_eq!(value["issues"][1]["message"], "0 is no port");
        assert_eq!(value["token"], LEFT_OUT);
        assert_eq!(value["tokens"], 3);
        // What is no JSON after all is read as lines.
        assert_eq!(redacted("x.json", "token: hunter2"), "token: [left out]");
    }
}
