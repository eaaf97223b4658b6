//! The grammar of the command line: GNU long options, and `-v` and `-h`.

use super::table::{Flags, TABLE};
use super::{PROGRAM, Spec, help};
use crate::config::go::{quote, quote_list};

/// A command line that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FlagError {
    message: String,
    with_usage: bool,
    notices: Vec<String>,
}

impl FlagError {
    /// Everything to print on stderr before leaving with failure.
    pub fn report(&self) -> String {
        let mut lines = self.notices.clone();
        if self.with_usage {
            lines.push(help::usage());
        }
        lines.push(format!("Error: {}\n", self.message));
        lines.join("\n")
    }
}

/// Reads the words after the program's name.
///
/// # Errors
/// The first word that cannot be followed. A stray argument is one, but not beside `--help`.
pub fn parse<I>(words: I) -> Result<Flags, FlagError>
where
    I: IntoIterator<Item: Into<String>>,
{
    let mut line = Line {
        flags: Flags::default(),
        words: words
            .into_iter()
            .map(Into::into)
            .collect::<Vec<_>>()
            .into_iter(),
        arguments: Vec::new(),
    };
    let outcome = line.read();
    let error = |message, with_usage, notices: &[String]| FlagError {
        message,
        with_usage,
        notices: notices.to_vec(),
    };
    if let Err(message) = outcome {
        return Err(error(message, true, &line.flags.notices));
    }
    if !line.flags.help.value && line.arguments.iter().any(|argument| !argument.is_empty()) {
        let message = format!(
            "{} does not take any arguments, got {}",
            quote(PROGRAM),
            quote_list(&line.arguments)
        );
        return Err(error(message, false, &line.flags.notices));
    }
    Ok(line.flags)
}

/// A command line while it is read.
struct Line {
    flags: Flags,
    words: std::vec::IntoIter<String>,
    arguments: Vec<String>,
}

impl Line {
    fn read(&mut self) -> Result<(), String> {
        while let Some(word) = self.words.next() {
            if word == "--" {
                self.arguments.extend(self.words.by_ref());
            } else if let Some(long) = word.strip_prefix("--") {
                self.long(long, &word)?;
            } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
                self.short(short)?;
            } else {
                self.arguments.push(word);
            }
        }
        Ok(())
    }

    /// `name`, `name=value`, or `name` with its value in the next word.
    fn long(&mut self, text: &str, word: &str) -> Result<(), String> {
        if text.starts_with(['-', '=']) {
            return Err(format!("bad flag syntax: {word}"));
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let spec = find(&name.replace('_', "-")).ok_or(format!("unknown flag: --{name}"))?;
        let value = value
            .or_else(|| spec.value(&self.flags).bare().map(str::to_owned))
            .or_else(|| self.words.next())
            .ok_or(format!("flag needs an argument: --{name}"))?;
        self.set(spec, &value)
    }

    /// One letter after the other: `-h`, `-v2`, `-v=2`, `-v 2`.
    fn short(&mut self, text: &str) -> Result<(), String> {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let whole = rest;
            let spec = TABLE
                .iter()
                .find(|spec| spec.short == Some(letter))
                .ok_or(format!("unknown shorthand flag: {letter:?} in -{whole}"))?;
            rest = &rest[letter.len_utf8()..];
            let bare = spec.value(&self.flags).bare();
            let value = if rest.len() > 1 && rest.starts_with('=') {
                std::mem::take(&mut rest)[1..].to_owned()
            } else if let Some(bare) = bare {
                bare.to_owned()
            } else if rest.is_empty() {
                self.words
                    .next()
                    .ok_or(format!("flag needs an argument: {letter:?} in -{whole}"))?
            } else {
                std::mem::take(&mut rest).to_owned()
            };
            self.set(spec, &value)?;
        }
        Ok(())
    }

    fn set(&mut self, spec: &'static Spec, value: &str) -> Result<(), String> {
        spec.value_mut(&mut self.flags)
            .assign(value)
            .map_err(|fault| {
                let short = spec.short.map(|letter| format!("-{letter}, "));
                let short = short.unwrap_or_default();
                format!(
                    "invalid argument {} for \"{short}--{}\" flag: {fault}",
                    quote(value),
                    spec.name
                )
            })?;
        if let Some(advice) = spec.deprecated {
            let notice = format!("Flag --{} has been deprecated, {advice}", spec.name);
            self.flags.notices.push(notice);
        }
        Ok(())
    }
}

fn find(name: &str) -> Option<&'static Spec> {
    TABLE.iter().find(|spec| spec.name == name)
}
