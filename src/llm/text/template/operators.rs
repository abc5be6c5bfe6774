//! Python's operators, which differ from the interpreter's for operands of different types.

use std::cmp::Ordering;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::budget::{Budget, size_of_value};
use super::{methods, python};

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

pub(super) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// An integer, or a boolean as 0 or 1.
fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// A number or a boolean as a float.
pub(super) fn float(value: &Value) -> Option<f64> {
    match integer(value) {
        Some(number) => Some(number as f64),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    }
}

fn unsupported(name: &str, left: &Value, right: &Value) -> Error {
    let (left, right) = (left.kind(), right.kind());
    invalid(format!("'{name}' between {left} and {right}"))
}

/// An operation on two numbers: on integers, booleans among them, else on floats.
fn arithmetic(
    name: &str,
    left: &Value,
    right: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        return integers(left, right)
            .map(Value::from)
            .ok_or_else(|| invalid(format!("'{name}' passes the range of integers")));
    }
    match (float(left), float(right)) {
        (Some(left), Some(right)) => Ok(Value::from(floats(left, right))),
        _ => Err(unsupported(name, left, right)),
    }
}

/// `left + right`: numbers, texts, two lists or two tuples.
pub(super) fn sum(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.as_str().is_some() && right.as_str().is_some() {
        return concat_markup(budget, left, right);
    }
    if left.kind() != ValueKind::Seq || right.kind() != ValueKind::Seq {
        return arithmetic("+", left, right, i128::checked_add, |left, right| {
            left + right
        });
    }
    if is_tuple(left) != is_tuple(right) {
        return Err(invalid("'+' between a list and a tuple"));
    }
    let count = budget.visit(left)?.saturating_add(budget.visit(right)?);
    budget.list(count)?;
    let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
    Ok(same_kind(left, items))
}

/// A tuple if `like` is one, else a list.
pub(super) fn same_kind(like: &Value, items: Vec<Value>) -> Value {
    match is_tuple(like) {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    }
}

/// Two texts in one. Markup, which `escape` and `safe` make, escapes what is added to it.
fn concat_markup(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_markup = left.is_safe() || right.is_safe();
    let part = |value: &Value| {
        let text = python::str_of(budget, value)?;
        match is_markup && !value.is_safe() {
            true => escape(budget, &text),
            false => Ok(text),
        }
    };
    let (left, right) = (part(left)?, part(right)?);
    budget.text(left.len() + right.len())?;
    let text = [left, right].concat();
    Ok(match is_markup {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    })
}

/// `left ~ right`.
pub(super) fn concat(budget: &Budget, left: &Value, right: &Value) -> Result<String, Error> {
    let (left, right) = (
        python::str_of(budget, left)?,
        python::str_of(budget, right)?,
    );
    budget.text(left.len() + right.len())?;
    Ok([left, right].concat())
}

/// `left * right`: numbers, or a text or list so many times.
pub(super) fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_many = |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq);
    let (many, times) = match (is_many(left), is_many(right)) {
        (true, false) => (left, right),
        (false, true) => (right, left),
        (true, true) => return Err(invalid("'*' between two sequences")),
        (false, false) => {
            return arithmetic("*", left, right, i128::checked_mul, |left, right| {
                left * right
            });
        }
    };
    let times = integer(times).ok_or_else(|| unsupported("*", left, right))?;
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    budget.allocate(size_of_value(many).saturating_mul(times as u64))?;
    if let Some(text) = many.as_str() {
        let text = text.repeat(times);
        return Ok(match many.is_safe() {
            true => Value::from_safe_string(text),
            false => Value::from(text),
        });
    }
    let elements = budget.visit(many)?;
    budget.list(elements.saturating_mul((times as u64).saturating_add(1)))?;
    let items: Vec<Value> = many.try_iter()?.collect();
    let repeated = std::iter::repeat_n(items, times).flatten();
    Ok(same_kind(many, repeated.collect()))
}

/// `left % right`: numbers, or a text in which `%s` and kin are filled in.
pub(super) fn remainder(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        // A tuple is one argument for each field; a list or map may go unused, as in Python.
        let args: Vec<Value> = match is_tuple(right) {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        let may_be_unused = !is_tuple(right)
            && matches!(
                right.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
            );
        return printf(budget, left, &args, may_be_unused);
    }
    // Python's remainder has the sign of the divisor.
    let floored = |left: i128, right: i128| {
        let remainder = left.checked_rem(right)?;
        let differs = remainder != 0 && (remainder < 0) != (right < 0);
        Some(if differs {
            remainder + right
        } else {
            remainder
        })
    };
    if integer(right) == Some(0) {
        return Err(invalid("'%' by zero"));
    }
    arithmetic("%", left, right, floored, |left, right| {
        left - right * (left / right).floor()
    })
}

/// `text % args`, with lists and maps printed as Python does. Markup escapes its arguments.
pub(super) fn printf(
    budget: &Budget,
    text: &Value,
    args: &[Value],
    may_be_unused: bool,
) -> Result<Value, Error> {
    let format_text = text.as_str().unwrap_or_default();
    methods::check_widths(format_text)?;
    let is_named = format_text.contains("%(");
    if !is_named && !may_be_unused && conversions(format_text) < args.len() {
        return Err(invalid("not all arguments of a format are used"));
    }
    let args: Vec<Value> = args
        .iter()
        .map(|value| match value.kind() {
            ValueKind::Map if is_named => Ok(value.clone()),
            ValueKind::String if text.is_safe() && !value.is_safe() => {
                escape(budget, value.as_str().unwrap_or_default()).map(Value::from)
            }
            _ => printable(budget, value),
        })
        .collect::<Result<_, _>>()?;
    budget.text(formatted_len_max(format_text, &args))?;
    let made = format(FormatStyle::Printf, format_text, &args)?;
    Ok(match text.is_safe() {
        true => Value::from_safe_string(made),
        false => Value::from(made),
    })
}

/// How many arguments `%` fields take.
fn conversions(format: &str) -> usize {
    format.replace("%%", "").matches('%').count()
}

/// Numbers as they are, for they have formats of their own; everything else as its text.
pub(super) fn printable(budget: &Budget, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Number => Ok(value.clone()),
        _ => Ok(Value::from(python::str_of(budget, value)?)),
    }
}

/// A bound on the length of a text that is formatted with `args`, whose widths were checked: each
/// argument may appear once for each field that names it.
pub(super) fn formatted_len_max(text: &str, args: &[Value]) -> usize {
    let fields = text.matches(['%', '{']).count();
    let longest = args.iter().filter_map(|value| value.as_str().map(str::len));
    let field = longest.max().unwrap_or(0).max(64) + methods::widest_field(text);
    text.len().saturating_add(fields.saturating_mul(field))
}

/// The order of two values, which Python has between numbers, texts, lists and tuples.
pub(super) fn order(budget: &Budget, left: &Value, right: &Value) -> Result<Ordering, Error> {
    budget.compared(left)?;
    budget.compared(right)?;
    ordered(left, right)
}

pub(super) fn ordered(left: &Value, right: &Value) -> Result<Ordering, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return Ok(left.cmp(right));
    }
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return Ok(a.cmp(&b));
    }
    if let (Some(a), Some(b)) = (float(left), float(right)) {
        // Not a number is neither less nor greater; an order must be total all the same.
        return Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal));
    }
    let both_lists = left.kind() == ValueKind::Seq && right.kind() == ValueKind::Seq;
    if !both_lists || is_tuple(left) != is_tuple(right) {
        return Err(unsupported("<", left, right));
    }
    for (a, b) in left.try_iter()?.zip(right.try_iter()?) {
        if a != b {
            return ordered(&a, &b);
        }
    }
    Ok(left.len().cmp(&right.len()))
}

/// Lists and maps are no keys.
pub(super) fn check_hashable(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq if is_tuple(value) => Ok(()),
        kind @ (ValueKind::Seq | ValueKind::Map) => Err(invalid(format!("a {kind} is no key"))),
        _ => Ok(()),
    }
}

/// Whether `item` may be looked for in `container`: texts are in texts only, and numbers hold nothing.
pub(super) fn check_membership(item: &Value, container: &Value) -> Result<(), Error> {
    if container.kind() == ValueKind::Map {
        return check_hashable(item);
    }
    let is_fine = match container.kind() {
        ValueKind::String => item.as_str().is_some(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => false,
        _ => true,
    };
    match is_fine {
        true => Ok(()),
        false => Err(unsupported("in", item, container)),
    }
}

/// The escapes of HTML as Jinja writes them.
pub(super) fn escape(budget: &Budget, text: &str) -> Result<String, Error> {
    // An escape takes at most five bytes.
    budget.text(text.len().saturating_mul(5))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// `value[start:stop:step]`. What has no elements in order has no slices: the result is undefined.
pub(super) fn slice(budget: &Budget, value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() || value.is_undefined() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let [start, stop, step] = bounds;
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if let Some(text) = value.as_str() {
        budget.read(text.len() as u64)?;
        budget.allocate(4 * text.len() as u64)?;
        budget.text(text.len())?;
        let chars: Vec<char> = text.chars().collect();
        let picked = slice_indices(chars.len(), start, stop, step)?;
        let made: String = picked.map(|i| chars[i]).collect();
        return Ok(match value.is_safe() {
            true => Value::from_safe_string(made),
            false => Value::from(made),
        });
    }
    let items: Vec<Value> = match value.kind() {
        ValueKind::Undefined => return Err(invalid("an undefined value cannot be sliced")),
        ValueKind::Seq | ValueKind::Iterable => {
            budget.list(budget.visit(value)?)?;
            value.try_iter()?.collect()
        }
        _ => return Ok(Value::UNDEFINED),
    };
    let picked: Vec<Value> = slice_indices(items.len(), start, stop, step)?
        .map(|i| items[i].clone())
        .collect();
    budget.list(picked.len() as u64)?;
    Ok(same_kind(value, picked))
}

/// The indices that a slice of `len` elements picks, in order.
fn slice_indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> Result<impl Iterator<Item = usize>, Error> {
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(index) if index < 0 => index.saturating_add(len).clamp(lowest, highest),
        Some(index) => index.clamp(lowest, highest),
    };
    let (start, stop) = if step > 0 {
        (place(start, 0), place(stop, len))
    } else {
        (place(start, len - 1), place(stop, -1))
    };
    let inside = move |&index: &i64| {
        if step > 0 { index < stop } else { index > stop }
    };
    let indices = std::iter::successors(Some(start), move |index| index.checked_add(step));
    Ok(indices
        .take_while(inside)
        .filter_map(|index| usize::try_from(index).ok()))
}
