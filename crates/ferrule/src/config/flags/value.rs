//! The types a flag's value can have: how text is read into them and how they are printed.
//!
//! The words and messages are those of the Go libraries kube-proxy reads its flags with.

use std::collections::BTreeMap;

use ferrule_core::model::parse_ip;
use ferrule_dataplane::userspace::PortalsBy;

use crate::config::go::{
    GoDuration, Quantity, format_float32, parse_bool, parse_float32, parse_int32, parse_uint,
    quote, split_host_port,
};
use crate::config::v1alpha1::VModuleItem;
use crate::sync::RestBy;
use crate::version::KUBERNETES as KUBERNETES_VERSION;

/// A flag's value, and whether the command line gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// The value; the default until the flag is given.
    pub value: T,
    /// Whether the flag was given.
    pub set: bool,
}

impl<T> Setting<T> {
    /// A flag that was not given.
    pub const fn new(default: T) -> Self {
        Self {
            value: default,
            set: false,
        }
    }

    /// The value, if the flag was given.
    pub fn given(&self) -> Option<&T> {
        self.set.then_some(&self.value)
    }
}

/// A [`Setting`] of whatever type.
pub trait Value {
    /// Takes a value from the command line.
    ///
    /// # Errors
    /// Why the text is no such value.
    fn assign(&mut self, text: &str) -> Result<(), String>;
    /// The value as text.
    fn text(&self) -> String;
    /// The word for the type in help.
    fn word(&self) -> &'static str;
    /// The value the flag has when it is named without one.
    fn bare(&self) -> Option<&'static str>;
}

impl<T: Kind> Value for Setting<T> {
    fn assign(&mut self, text: &str) -> Result<(), String> {
        self.value.assign(text, !self.set)?;
        self.set = true;
        Ok(())
    }

    fn text(&self) -> String {
        self.value.text()
    }

    fn word(&self) -> &'static str {
        T::WORD
    }

    fn bare(&self) -> Option<&'static str> {
        T::BARE
    }
}

/// A type a flag can have.
pub trait Kind {
    /// The word for it in help.
    const WORD: &'static str;
    /// The value of a flag that is named without one.
    const BARE: Option<&'static str> = None;
    /// Takes a text; `first` while the value is still the default.
    ///
    /// # Errors
    /// Why the text is no such value.
    fn assign(&mut self, text: &str, first: bool) -> Result<(), String>;
    /// The value as text.
    fn text(&self) -> String;
}

impl Kind for bool {
    const WORD: &'static str = "";
    const BARE: Option<&'static str> = Some("true");

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = parse_bool(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Kind for String {
    const WORD: &'static str = "string";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        text.clone_into(self);
        Ok(())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Kind for i32 {
    const WORD: &'static str = "int32";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = parse_int32(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Kind for f32 {
    const WORD: &'static str = "float32";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = parse_float32(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        format_float32(*self)
    }
}

impl Kind for GoDuration {
    const WORD: &'static str = "duration";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = Self::parse(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Kind for Quantity {
    const WORD: &'static str = "quantity";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = Self::parse(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A word that validation looks at later.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub String);

        impl Kind for $name {
            const WORD: &'static str = $word;

            fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
                text.clone_into(&mut self.0);
                Ok(())
            }

            fn text(&self) -> String {
                self.0.clone()
            }
        }
    )*};
}

words! {
    /// A mode of proxying.
    ProxyMode = "ProxyMode";
    /// A way to recognise local traffic.
    LocalMode = "LocalMode";
}

/// What leads to proxy ports in mode userspace.
impl Kind for PortalsBy {
    const WORD: &'static str = "string";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = match text {
            "nftables" => Self::Nftables,
            "iptables" => Self::Iptables,
            _ => return Err("must be nftables or iptables".to_owned()),
        };
        Ok(())
    }

    fn text(&self) -> String {
        let text = match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        };
        text.to_owned()
    }
}

impl Kind for RestBy {
    const WORD: &'static str = "SyncPace";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = match text {
            "cost" => Self::Cost,
            "fixed" => Self::Fixed,
            other => return Err(format!("{} is neither cost nor fixed", quote(other))),
        };
        Ok(())
    }

    fn text(&self) -> String {
        match self {
            Self::Cost => "cost".to_owned(),
            Self::Fixed => "fixed".to_owned(),
        }
    }
}

/// An IP address. Nothing is an answer too: it keeps what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip(pub String);

impl Kind for Ip {
    const WORD: &'static str = "ip";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        if !text.is_empty() {
            require_ip(text)?;
            text.clone_into(&mut self.0);
        }
        Ok(())
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

fn require_ip(text: &str) -> Result<(), String> {
    match parse_ip(text) {
        Some(_) => Ok(()),
        None => Err(format!("{} is not a valid IP address", quote(text))),
    }
}

/// An IP address with or without a port. Nothing is an answer too: it keeps what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPort(pub String);

impl Kind for IpPort {
    const WORD: &'static str = "ipport";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        if parse_ip(text).is_none() {
            let (host, port) = split_host_port(text).map_err(|fault| {
                let text = quote(text);
                format!("{text} is not in a valid format (ip or ip:port): {fault}")
            })?;
            require_ip(host)?;
            // Port 0 passes here and fails in validation, as ever.
            if port.parse::<u16>().is_err() {
                return Err(format!("{} is not a valid number", quote(port)));
            }
        }
        text.clone_into(&mut self.0);
        Ok(())
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level(pub u32);

impl Kind for Level {
    const WORD: &'static str = "Level";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        self.0 = parse_uint(text, 31).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// How much is logged in which files. The last one given counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VModule(pub Vec<VModuleItem>);

impl Kind for VModule {
    const WORD: &'static str = "pattern=N,...";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        let items = text.split(',').filter(|item| !item.is_empty());
        self.0 = items.map(vmodule_item).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn text(&self) -> String {
        let items = self.0.iter();
        let items: Vec<_> = items
            .map(|item| format!("{}={}", item.file_pattern, item.verbosity))
            .collect();
        items.join(",")
    }
}

fn vmodule_item(text: &str) -> Result<VModuleItem, String> {
    match text.split_once('=') {
        Some((pattern, level))
            if !pattern.is_empty() && !level.is_empty() && !level.contains('=') =>
        {
            let verbosity = parse_uint(level, 31)
                .map_err(|error| format!("parsing verbosity in {}: {error}", quote(text)))?;
            Ok(VModuleItem {
                file_pattern: pattern.to_owned(),
                verbosity,
            })
        }
        _ => Err(format!(
            "{} does not have the pattern=N format",
            quote(text)
        )),
    }
}

/// A list of texts, separated by commas. The first one given replaces the default, later ones
/// are appended; `None` until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings(pub Option<Vec<String>>);

impl Kind for Strings {
    const WORD: &'static str = "strings";

    fn assign(&mut self, text: &str, first: bool) -> Result<(), String> {
        let items = split_csv(text)?;
        match &mut self.0 {
            Some(list) if !first => list.extend(items),
            list => *list = Some(items),
        }
        Ok(())
    }

    fn text(&self) -> String {
        let items = self.0.iter().flatten();
        let items: Vec<_> = items.map(|item| csv_field(item)).collect();
        format!("[{}]", items.join(","))
    }
}

/// One line of comma separated values; a field in double quotes may hold commas.
fn split_csv(text: &str) -> Result<Vec<String>, String> {
    let line = text.lines().next().unwrap_or_default();
    let mut fields = Vec::new();
    let mut rest = Some(line).filter(|line| !line.is_empty());
    while let Some(start) = rest {
        let (field, after) = match start.strip_prefix('"') {
            Some(quoted) => quoted_field(line, quoted)?,
            None => bare_field(line, start)?,
        };
        fields.push(field);
        rest = after.strip_prefix(',');
        if rest.is_none() && !after.is_empty() {
            return Err(csv_fault(
                line,
                after,
                "extraneous or missing \" in quoted-field",
            ));
        }
    }
    Ok(fields)
}

/// What stands before the next comma, and the rest from there.
fn bare_field<'a>(line: &str, start: &'a str) -> Result<(String, &'a str), String> {
    let (field, after) = start.split_at(start.find(',').unwrap_or(start.len()));
    match field.find('"') {
        Some(quote) => Err(csv_fault(
            line,
            &start[quote..],
            "bare \" in non-quoted field",
        )),
        None => Ok((field.to_owned(), after)),
    }
}

/// What stands before the closing quote, and the rest after it. Two quotes are one quote.
fn quoted_field<'a>(line: &str, mut start: &'a str) -> Result<(String, &'a str), String> {
    let mut field = String::new();
    while let Some((part, after)) = start.split_once('"') {
        field.push_str(part);
        let Some(more) = after.strip_prefix('"') else {
            return Ok((field, after));
        };
        field.push('"');
        start = more;
    }
    Err(csv_fault(
        line,
        "",
        "extraneous or missing \" in quoted-field",
    ))
}

/// What is wrong where `rest` of the line begins.
fn csv_fault(line: &str, rest: &str, what: &str) -> String {
    let column = line.len() - rest.len() + 1;
    format!("parse error on line 1, column {column}: {what}")
}

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n']) || text.starts_with(' ') {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Feature gates by name. Giving the flag again adds to what was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateValues(pub BTreeMap<String, bool>);

impl Kind for GateValues {
    const WORD: &'static str = "mapStringBool";

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err("malformed pair, expect string=bool".to_owned());
            };
            let (name, value) = (name.trim(), value.trim());
            let value = parse_bool(value)
                .map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
            self.0.insert(name.to_owned(), value);
        }
        Ok(())
    }

    fn text(&self) -> String {
        let pairs = self.0.iter();
        let pairs: Vec<_> = pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        pairs.join(",")
    }
}

/// What to do about the version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VersionFlag {
    /// Nothing.
    #[default]
    Off,
    /// Print it.
    Print,
    /// Print everything known about it.
    Raw,
    /// Report this one.
    Reported(String),
}

impl Kind for VersionFlag {
    const WORD: &'static str = "version";
    const BARE: Option<&'static str> = Some("true");

    fn assign(&mut self, text: &str, _: bool) -> Result<(), String> {
        *self = if text == "raw" {
            Self::Raw
        } else if text.starts_with('v') {
            if numbers(text) != numbers(KUBERNETES_VERSION) {
                return Err(format!(
                    "version {} must match major/minor/patch of default version {}",
                    quote(text),
                    quote(KUBERNETES_VERSION)
                ));
            }
            Self::Reported(text.to_owned())
        } else if parse_bool(text).map_err(|error| error.to_string())? {
            Self::Print
        } else {
            Self::Off
        };
        Ok(())
    }

    fn text(&self) -> String {
        match self {
            Self::Off => "false".to_owned(),
            Self::Print => "true".to_owned(),
            Self::Raw => "raw".to_owned(),
            Self::Reported(version) => version.clone(),
        }
    }
}

/// A version without what follows its patch number.
fn numbers(version: &str) -> &str {
    version.split(['-', '+']).next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned<T: Kind + Default>(texts: &[&str]) -> Result<T, String> {
        let mut value = T::default();
        for (at, text) in texts.iter().enumerate() {
            value.assign(text, at == 0)?;
        }
        Ok(value)
    }

    #[test]
    fn lists_are_comma_separated_and_grow() {
        let list = assigned::<Strings>(&["a,b", "c"]).unwrap();
        assert_eq!(list.text(), "[a,b,c]");
        let list = assigned::<Strings>(&["\"a,b\",c\"\""]).unwrap_err();
        assert_eq!(
            list,
            "parse error on line 1, column 8: bare \" in non-quoted field"
        );
        let list = assigned::<Strings>(&["\"a,\"\"b\",c"]).unwrap();
        assert_eq!(list.0.as_deref().unwrap(), ["a,\"b", "c"]);
        assert_eq!(list.text(), "[\"a,\"\"b\",c]");
        assert_eq!(assigned::<Strings>(&[""]).unwrap().0, Some(vec![]));
        assert_eq!(assigned::<Strings>(&["a,"]).unwrap().0.unwrap(), ["a", ""]);
        assert!(assigned::<Strings>(&["\"a"]).is_err());
        assert!(assigned::<Strings>(&["\"a\"b"]).is_err());
    }

    #[test]
    fn gates_merge_and_blanks_around_them_do_not_count() {
        let gates = assigned::<GateValues>(&[" A = true ,,B=0", "A=false"]).unwrap();
        assert_eq!(gates.text(), "A=false,B=false");
    }

    #[test]
    fn the_last_vmodule_counts() {
        let vmodule = assigned::<VModule>(&["a=1", "b=2,,c*=3"]).unwrap();
        assert_eq!(vmodule.text(), "b=2,c*=3");
        for text in ["a=", "=1", "a=1=2"] {
            let error = assigned::<VModule>(&[text]).unwrap_err();
            assert_eq!(
                error,
                format!("\"{text}\" does not have the pattern=N format")
            );
        }
        assert_eq!(
            assigned::<VModule>(&["a=x"]).unwrap_err(),
            "parsing verbosity in \"a=x\": strconv.ParseUint: parsing \"x\": invalid syntax"
        );
    }
}
