//! Python's methods of strings, lists and dictionaries.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::Budget;
use super::{operators, python};

/// Widest field of a format.
const WIDTH_MAX: u64 = 1 << 16;

/// `value.name(args)`.
pub(super) fn call(
    budget: &Budget,
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    for value in std::iter::once(value).chain(args) {
        budget.read(value.as_str().map_or(0, str::len) as u64)?;
    }
    if let Some(text) = value.as_str()
        && let Some(made) = text_method(budget, text, name, args)?
    {
        return Ok(made);
    }
    if matches!(value.kind(), ValueKind::Seq) && name == "count" {
        budget.compared(value)?;
    }
    charge_method(budget, value, name)?;
    let made = unknown_method_callback(state, value, name, args)?;
    match name {
        "items" | "values" => budget.container(&made)?,
        _ => budget.made(&made)?,
    }
    Ok(made)
}

/// Charges for what a method of the library makes.
fn charge_method(budget: &Budget, value: &Value, name: &str) -> Result<(), Error> {
    match (value.as_str(), name) {
        (Some(text), "split" | "splitlines") => {
            budget.steps(text.len() as u64)?;
            budget.list(text.len() as u64)?;
            budget.text(text.len())
        }
        (Some(text), _) => budget.text(text.len()),
        // "items" makes a list of pairs.
        (None, "items" | "values" | "keys") => budget.list(budget.visit(value)?.saturating_mul(3)),
        (None, _) => Ok(()),
    }
}

/// Methods whose result may be larger than what it is made from, and those the library lacks.
fn text_method(
    budget: &Budget,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let made = match name {
        "replace" => {
            let (from, to, count): (String, String, Option<i64>) = from_args(args)?;
            // A negative count means all, as in Python.
            let count = count.and_then(|count| usize::try_from(count).ok());
            Value::from(replace(budget, text, &from, &to, count)?)
        }
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                budget.steps(1)?;
                if index > 0 {
                    budget.text(text.len())?;
                    out.push_str(text);
                }
                let item = python::str_of(budget, &item)?;
                budget.text(item.len())?;
                out.push_str(&item);
            }
            Value::from(out)
        }
        "format" => {
            check_widths(text)?;
            let args: Vec<Value> = args
                .iter()
                .map(|value| match value.is_kwargs() {
                    true => Ok(value.clone()),
                    false => operators::printable(budget, value),
                })
                .collect::<Result<_, _>>()?;
            return format_method(budget, text, &args).map(Some);
        }
        "rsplit" => {
            let (separator, count): (Option<String>, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            budget.steps(text.len() as u64)?;
            budget.list(text.len() as u64)?;
            budget.text(text.len())?;
            rsplit(text, separator.as_deref(), count)?
        }
        "removeprefix" => {
            let (prefix,): (String,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (String,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (String,) = from_args(args)?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            let (found, missing) = match name {
                "partition" => (text.split_once(separator.as_str()), [text, "", ""]),
                _ => (text.rsplit_once(separator.as_str()), ["", "", text]),
            };
            let parts = match found {
                Some((before, behind)) => [before, &separator, behind],
                None => missing,
            };
            Value::from(Tuple::from(parts.map(Value::from).to_vec()))
        }
        _ => return Ok(None),
    };
    budget.made(&made)?;
    Ok(Some(made))
}

fn format_method(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    // Arguments by name are one value, a map: their texts count with the others.
    let mut values = Vec::with_capacity(args.len());
    for value in args {
        match value.is_kwargs() {
            true => values.extend(
                value
                    .try_iter()?
                    .filter_map(|key| value.get_item(&key).ok()),
            ),
            false => values.push(value.clone()),
        }
    }
    budget.text(operators::formatted_len_max(text, &values))?;
    let made =
        minijinja::formatting::format(minijinja::formatting::FormatStyle::StrFormat, text, args)?;
    budget.made(&Value::from(made.as_str()))?;
    Ok(Value::from(made))
}

/// Refuses formats that ask for a field or a precision of more than [`WIDTH_MAX`].
pub(super) fn check_widths(format: &str) -> Result<(), Error> {
    let mut number = 0u64;
    for c in format.chars() {
        match c.to_digit(10) {
            Some(digit) => number = number.saturating_mul(10).saturating_add(digit.into()),
            None => number = 0,
        }
        if number > WIDTH_MAX && format.contains(['%', '{']) {
            return Err(invalid("a format with a number above 65536"));
        }
    }
    if format.contains('*') && format.contains('%') {
        return Err(invalid("a format with a width among its arguments"));
    }
    Ok(())
}

/// The greatest number in a format: no field is wider.
pub(super) fn widest_field(format: &str) -> usize {
    let numbers = format.split(|c: char| !c.is_ascii_digit());
    let widths = numbers.filter_map(|digits| digits.parse().ok());
    widths.max().unwrap_or(0).min(WIDTH_MAX as usize)
}

/// Every occurrence, or the first `count`, counted before it is made.
pub(super) fn replace(
    budget: &Budget,
    text: &str,
    from: &str,
    to: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let count = count.unwrap_or(usize::MAX);
    let found = text.matches(from).take(count).count();
    budget.text(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(text.replacen(from, to, count))
}

fn rsplit(text: &str, separator: Option<&str>, count: Option<usize>) -> Result<Value, Error> {
    let pieces = count.map_or(usize::MAX, |count| count.saturating_add(1));
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => parts.extend(text.rsplitn(pieces, separator)),
        None => {
            let mut rest = text.trim_end();
            while !rest.is_empty() && parts.len() + 1 < pieces {
                let begin = rest
                    .char_indices()
                    .rfind(|(_, c)| c.is_whitespace())
                    .map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[begin..]);
                rest = rest[..begin].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    parts.reverse();
    Ok(Value::from_iter(parts))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
