//! How Python prints values: `str()` and `repr()`.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::budget::Budget;
use super::generator::Generator;

/// Deepest list or map that is printed.
const DEPTH_MAX: usize = 200;

/// `str(value)`: texts as they are, everything else as `repr` has it; undefined values are nothing.
pub(super) fn str_of(budget: &Budget, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        budget.text(text.len())?;
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    repr_to(budget, value, &mut out, 0)?;
    Ok(out)
}

fn repr_to(budget: &Budget, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    // Escapes take up to four bytes for one.
    budget.text(16 + 4 * value.as_str().map_or(0, str::len))?;
    budget.steps(1)?;
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number_to(value, out),
        ValueKind::String => repr_str_to(value.as_str().unwrap_or_default(), out),
        ValueKind::Iterable if Generator::remaining(value).is_some() => {
            out.push_str("<generator object>");
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = match is_tuple(value) {
                true => ('(', ')'),
                false => ('[', ']'),
            };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                repr_to(budget, &item, out, depth + 1)?;
                count += 1;
            }
            if count == 1 && open == '(' {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr_to(budget, &key, out, depth + 1)?;
                out.push_str(": ");
                repr_to(budget, &value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn is_tuple(value: &Value) -> bool {
    value
        .downcast_object_ref::<minijinja::value::Tuple>()
        .is_some()
}

pub(super) fn too_deep() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a value is nested deeper than {DEPTH_MAX} levels"),
    )
}

/// A number as Python prints it.
pub(super) fn number_to(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    match f64::try_from(value.clone()) {
        Ok(number) => out.push_str(&float(number)),
        Err(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

/// The shortest digits that read back the same, in Python's choice of notation.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

/// A text in quotes, as in Python: single ones unless it has those and no double ones.
fn repr_str_to(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// About `str.isprintable`: no control, format or separator characters but the space.
fn is_printable(c: char) -> bool {
    c == ' '
        || !(c.is_control()
            || c.is_whitespace()
            || matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{180e}'
                | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..='\u{10ffff}'))
}

#[cfg(test)]
mod tests {
    use super::super::{RenderOptions, TemplateLimits};
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (123_456.789, "123456.789"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn values_print_as_in_python() {
        let budget = Budget::new(TemplateLimits::default(), &RenderOptions::default());
        let value = Value::from(minijinja::value::Serde(serde_json::json!(
            {"a": [1, 2.0, true, null], "b'c": "it's \"x\"\n", "d": "it's", "e": {}}
        )));

        assert_eq!(
            str_of(&budget, &value).unwrap(),
            r#"{'a': [1, 2.0, True, None], "b'c": 'it\'s "x"\n', 'd': "it's", 'e': {}}"#
        );
    }
}
