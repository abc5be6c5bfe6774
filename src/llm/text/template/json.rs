//! `tojson` as in `transformers`: Python's `json.dumps`, without HTML escapes.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::budget::Budget;
use super::python;

const DEPTH_MAX: usize = 200;

/// The arguments of `json.dumps` that `tojson` has.
struct Style<'b> {
    budget: &'b Budget,
    ensure_ascii: bool,
    /// What one level is indented by; `None`: all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    budget: &Budget,
    value: &Value,
    args: &[Value],
    kwargs: &Kwargs,
) -> Result<String, Error> {
    let argument = |position: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = match args.get(position) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        None => None,
        Some(value) => Some(indent_of(&value)?),
    };
    let (item_separator, key_separator) = match argument(2, "separators")? {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
    };
    let style = Style {
        budget,
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys: argument(3, "sort_keys")?.is_some_and(|value| value.is_true()),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

fn indent_of(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    match usize::try_from(value.clone()) {
        Ok(width) if width <= 64 => Ok(" ".repeat(width)),
        _ => Err(invalid("indent is a number up to 64 or a text")),
    }
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    item.as_str()
        .map(str::to_owned)
        .ok_or_else(|| invalid("separators are two texts"))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"))
}

impl Style<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(python::too_deep());
        }
        let indent = self.indent.as_ref().map_or(0, String::len);
        let text = value.as_str().map_or(0, |text| self.len_max(text));
        let separators = self.item_separator.len() + self.key_separator.len();
        self.budget.steps(1)?;
        self.budget
            .text(32 + text + separators + indent.saturating_mul(depth + 1))?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(number) if !value.is_integer() && !number.is_finite() => {
                    out.push_str(if number.is_nan() {
                        "NaN"
                    } else if number > 0.0 {
                        "Infinity"
                    } else {
                        "-Infinity"
                    });
                }
                _ => python::number_to(value, out),
            },
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                self.budget.list(self.budget.visit(value)?)?;
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(items.len(), ['[', ']'], depth, out, |index, out| {
                    self.write(&items[index], depth + 1, out)
                })?;
            }
            ValueKind::Map => self.map(value, depth, out)?,
            other => return Err(invalid(&format!("a value of kind {other} is not JSON"))),
        }
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        self.budget.list(self.budget.visit(value)?)?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.list(keys.len(), ['{', '}'], depth, out, |index, out| {
            let key = &keys[index];
            match key.as_str() {
                Some(text) => {
                    self.budget.text(self.len_max(text))?;
                    self.text(text, out);
                }
                None => {
                    let mut text = String::new();
                    self.write(key, depth + 1, &mut text)?;
                    self.text(&text, out);
                }
            }
            out.push_str(&self.key_separator);
            self.write(&value.get_item(key)?, depth + 1, out)
        })
    }

    /// Brackets, separators and line breaks around `count` elements.
    fn list(
        &self,
        count: usize,
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        mut element: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for index in 0..count {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.line_break(depth + 1, out);
            element(index, out)?;
        }
        if count > 0 {
            self.line_break(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn line_break(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    /// A bound on the bytes that [`text`](Self::text) writes.
    fn len_max(&self, text: &str) -> usize {
        let escaped = |&byte: &u8| {
            byte < b' ' || matches!(byte, b'"' | b'\\') || self.ensure_ascii && !byte.is_ascii()
        };
        text.len() + 5 * text.bytes().filter(|byte| escaped(byte)).count() + 2
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
