//! One log line: klog's text, or JSON.

use jiff::Timestamp;
use serde_json::Value as Json;

use crate::config::go::quote;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    const fn letter(self) -> char {
        match self {
            Self::Info => 'I',
            Self::Warning => 'W',
            Self::Error => 'E',
        }
    }
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
}

/// Everything in a line.
#[derive(Clone, Debug)]
pub(super) struct Record<'a> {
    pub(super) severity: Severity,
    pub(super) verbosity: u32,
    pub(super) time: Timestamp,
    pub(super) process: u32,
    /// The path of the source file.
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) message: String,
    /// Whether the message stands without quotes: it is a sentence with its values in it.
    pub(super) plain: bool,
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl Record<'_> {
    /// The line, with its end.
    pub(super) fn format(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        }
    }

    /// `I1115 08:53:58.031893    3020 main.rs:12] "message" key="value"`
    fn text(&self) -> String {
        let message = if self.plain {
            self.message.clone()
        } else {
            quote(&self.message)
        };
        let mut line = format!(
            "{}{} {:7} {}:{}] {message}",
            self.severity.letter(),
            self.time.strftime("%m%d %H:%M:%S%.6f"),
            self.process,
            self.file.rsplit('/').next().unwrap_or(self.file),
            self.line
        );
        for (name, value) in &self.fields {
            line.push(' ');
            line.push_str(name);
            line.push('=');
            match value {
                Value::Text(text) if text.contains('\n') => push_lines(&mut line, text),
                Value::Text(text) => line.push_str(&quote(text)),
                Value::Integer(number) => line.push_str(&number.to_string()),
                Value::Float(number) => line.push_str(&number.to_string()),
                Value::Bool(value) => line.push_str(&value.to_string()),
            }
        }
        line.push('\n');
        line
    }

    /// `{"ts":1794734731271.571,"caller":"app/server.go:228","msg":"…","v":0,…}`
    fn json(&self) -> String {
        let mut pairs = vec![
            ("ts", millis(self.time)),
            ("caller", Json::from(self.caller())),
            ("msg", Json::from(self.message.as_str())),
        ];
        if self.severity != Severity::Error {
            pairs.push(("v", Json::from(self.verbosity)));
        }
        pairs.extend(self.fields.iter().map(|(name, value)| {
            let value = match value {
                Value::Text(text) => Json::from(text.as_str()),
                Value::Integer(number) => i64::try_from(*number)
                    .map_or_else(|_| Json::from(number.to_string()), Json::from),
                Value::Float(number) => Json::from(*number),
                Value::Bool(value) => Json::from(*value),
            };
            (*name, value)
        }));
        // Put together by hand, because the order of the keys is part of the format.
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| format!("{}:{value}", Json::from(*name)))
            .collect();
        format!("{{{}}}\n", pairs.join(","))
    }

    /// The source file with one folder before it, and the line.
    fn caller(&self) -> String {
        let start = self
            .file
            .rmatch_indices('/')
            .nth(1)
            .map_or(0, |(at, _)| at + 1);
        format!("{}:{}", &self.file[start..], self.line)
    }
}

/// Milliseconds since 1970 with a fraction.
#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds fit into 53 bits for two centuries to come"
)]
fn millis(time: Timestamp) -> Json {
    Json::from(time.as_microsecond() as f64 / 1000.0)
}

/// A value of several lines, each behind a tab, between `<` and ` >`.
fn push_lines(line: &mut String, text: &str) {
    line.push_str("<\n");
    for part in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        line.push('\t');
        // Whatever else it holds must not steer a terminal.
        line.extend(part.chars().flat_map(|c| match c {
            '\t' => vec![c],
            c if c.is_control() => c.escape_default().collect(),
            c => vec![c],
        }));
        line.push('\n');
    }
    line.push_str(" >");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record<'static> {
        Record {
            severity: Severity::Info,
            verbosity: 0,
            time: "2026-11-15T08:53:58.031893Z".parse().unwrap(),
            process: 3020,
            file: "crates/ferrule/src/config/main.rs",
            line: 12,
            message: "msg".to_owned(),
            plain: false,
            fields: vec![("key", Value::Text("value".to_owned()))],
        }
    }

    #[test]
    fn text_is_klogs() {
        assert_eq!(
            record().format(Format::Text),
            "I1115 08:53:58.031893    3020 main.rs:12] \"msg\" key=\"value\"\n"
        );
        let record = Record {
            severity: Severity::Error,
            message: "quo\"ted".to_owned(),
            fields: vec![
                ("n", Value::Integer(-1)),
                ("f", Value::Float(0.5)),
                ("b", Value::Bool(true)),
                ("t", Value::Text("a \"b\"\t".to_owned())),
            ],
            ..record()
        };
        assert_eq!(
            record.format(Format::Text),
            "E1115 08:53:58.031893    3020 main.rs:12] \"quo\\\"ted\" n=-1 f=0.5 b=true \
             t=\"a \\\"b\\\"\\t\"\n"
        );
    }

    #[test]
    fn values_of_several_lines_are_indented_by_a_tab() {
        for text in ["one\ntwo", "one\ntwo\n"] {
            let record = Record {
                severity: Severity::Warning,
                fields: vec![
                    ("err", Value::Text(text.to_owned())),
                    ("next", Value::Integer(1)),
                ],
                ..record()
            };
            assert_eq!(
                record.format(Format::Text),
                "W1115 08:53:58.031893    3020 main.rs:12] \"msg\" err=<\n\tone\n\ttwo\n > next=1\n"
            );
        }
    }

    #[test]
    fn no_value_steers_a_terminal() {
        let record = Record {
            fields: vec![
                ("one", Value::Text("\u{1b}[2J".to_owned())),
                ("two", Value::Text("a\n\u{1b}[2J\tb".to_owned())),
            ],
            ..record()
        };
        let line = record.format(Format::Text);
        assert!(
            !line.contains('\u{1b}') && line.contains("\n\t\\u{1b}[2J\tb\n"),
            "{line}"
        );
    }

    #[test]
    fn a_plain_message_has_no_quotes() {
        let record = Record {
            message: "FLAG: --v=\"1\"".to_owned(),
            plain: true,
            fields: Vec::new(),
            ..record()
        };
        let line = record.format(Format::Text);
        assert!(line.ends_with("main.rs:12] FLAG: --v=\"1\"\n"), "{line}");
        let json = record.format(Format::Json);
        assert!(json.contains(r#""msg":"FLAG: --v=\"1\"""#), "{json}");
    }

    #[test]
    fn json_has_its_keys_in_order_and_verbosity_only_on_information() {
        let record = Record {
            time: Timestamp::from_microsecond(1_794_734_731_271_571).unwrap(),
            ..record()
        };
        assert_eq!(
            record.format(Format::Json),
            "{\"ts\":1794734731271.571,\"caller\":\"config/main.rs:12\",\"msg\":\"msg\",\"v\":0,\
             \"key\":\"value\"}\n"
        );
        let record = Record {
            severity: Severity::Error,
            file: "main.rs",
            fields: vec![
                ("err", Value::Text("bad".to_owned())),
                ("n", Value::Integer(3)),
            ],
            ..record
        };
        assert_eq!(
            record.format(Format::Json),
            "{\"ts\":1794734731271.571,\"caller\":\"main.rs:12\",\"msg\":\"msg\",\"err\":\"bad\",\
             \"n\":3}\n"
        );
    }
}
