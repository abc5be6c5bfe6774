//! A model's text on the standard output. On a terminal, control characters are shown instead of acting.

use std::borrow::Cow;
use std::io::{self, IsTerminal, StdoutLock, Write};

/// The standard output.
pub struct Stdout {
    out: StdoutLock<'static>,
    is_terminal: bool,
}

impl Stdout {
    pub fn lock() -> Self {
        let out = io::stdout().lock();
        let is_terminal = out.is_terminal();
        Self { out, is_terminal }
    }

    /// Writes text that comes from a model: as it is to a file or pipe, [`harmless`] to a terminal.
    pub fn write_text(&mut self, text: &str) -> io::Result<()> {
        let text = match self.is_terminal {
            true => harmless(text),
            false => Cow::Borrowed(text),
        };
        self.out.write_all(text.as_bytes())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The text with visible signs in place of control characters, but for newline and tab: escape sequences
/// could otherwise rewrite the screen, set the title or paste into the input. Characters that reverse the
/// direction of text are control characters too.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let visible = |c: char| match u32::from(c) {
        // The signs of "Control Pictures".
        code @ 0..=0x1f => char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER),
        0x7f => '\u{2421}',
        _ if is_control(c) => char::REPLACEMENT_CHARACTER,
        _ => c,
    };
    Cow::Owned(
        text.chars()
            .map(|c| if is_control(c) { visible(c) } else { c })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_shown() {
        assert_eq!(
            harmless("\x1b[2J\x1b]0;t\x07"),
            "\u{241b}[2J\u{241b}]0;t\u{2407}"
        );
        assert_eq!(
            harmless("a\rb\x7f\u{9b}1m\u{202e}"),
            "a\u{240d}b\u{2421}\u{fffd}1m\u{fffd}"
        );
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        let text = "line\n\ttab é 日本 🙂";

        assert!(matches!(harmless(text), Cow::Borrowed(same) if same == text));
    }
}
