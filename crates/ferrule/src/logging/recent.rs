//! The last log lines: a bounded memory, for support.

use std::collections::VecDeque;

/// Lines and bytes that are kept.
const MOST_LINES: usize = 1_000;
const MOST_BYTES: usize = 256 << 10;

/// The last lines.
#[derive(Debug)]
pub(super) struct Recent {
    lines: VecDeque<Box<str>>,
    bytes: usize,
}

impl Recent {
    /// Nothing yet.
    pub(super) const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Keeps a line, and forgets the oldest ones for it. One that is too long alone is cut.
    pub(super) fn push(&mut self, line: &str) {
        let line = &line[..line.floor_char_boundary(MOST_BYTES)];
        self.bytes += line.len();
        self.lines.push_back(line.into());
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }

    /// All of them, oldest first.
    pub(super) fn text(&self) -> String {
        self.lines.iter().map(|line| &**line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_bounds() {
        let mut recent = Recent::new();
        for number in 0..5_000 {
            recent.push(&format!("line {number}\n"));
        }
        let text = recent.text();
        assert_eq!(text.lines().count(), MOST_LINES);
        assert!(text.starts_with("line 4000\n") && text.ends_with("line 4999\n"));
        // Long lines push out more than one.
        for _ in 0..3 {
            recent.push(&"ä".repeat(MOST_BYTES));
        }
        assert_eq!(recent.text().len(), MOST_BYTES);
        assert_eq!(recent.lines.len(), 1);
    }
}
