//! What templates can call: filters, tests, functions and methods, each counted against the budget.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, filters, tests,
};

use super::budget::{Budget, size_of_value};
use super::{Clock, TemplateLimits, guard, json, methods, python};

/// Begins the message of every error that a template raises itself.
pub(super) const REFUSED_PREFIX: &str = "refused: ";

/// What a filter of the interpreter does besides making a value.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Nothing,
    /// It compares what it is given.
    Compare,
    /// Its result nests one level deeper.
    Nest,
}

/// Names of functions of the interpreter, as values.
macro_rules! builtins {
    ($($module:ident :: $function:ident: $($name:literal)+),+ $(,)?) => {
        vec![$($(($name, Value::from_function($module::$function)),)+)+]
    };
}

fn filters_that(does: Does) -> Vec<(&'static str, Value)> {
    match does {
        Does::Nothing => builtins![
            filters::lower: "lower", filters::upper: "upper", filters::title: "title",
            filters::capitalize: "capitalize", filters::length: "length" "count",
            filters::reverse: "reverse", filters::trim: "trim", filters::split: "split",
            filters::lines: "lines", filters::default: "default" "d", filters::round: "round",
            filters::abs: "abs", filters::int: "int", filters::float: "float",
            filters::attr: "attr", filters::first: "first", filters::last: "last",
            filters::list: "list", filters::bool: "bool", filters::select: "select",
            filters::reject: "reject", filters::selectattr: "selectattr",
            filters::rejectattr: "rejectattr", filters::map: "map", filters::chain: "chain",
            filters::safe: "safe",
        ],
        Does::Compare => builtins![
            filters::sort: "sort", filters::unique: "unique", filters::min: "min",
            filters::max: "max", filters::sum: "sum",
        ],
        Does::Nest => builtins![
            filters::batch: "batch", filters::slice: "slice", filters::groupby: "groupby",
            filters::zip: "zip", filters::items: "items", filters::dictsort: "dictsort",
        ],
    }
}

fn tests_that_compare() -> Vec<(&'static str, Value)> {
    builtins![
        tests::is_eq: "eq" "equalto" "==", tests::is_ne: "ne" "!=",
        tests::is_lt: "lt" "lessthan" "<", tests::is_le: "le" "<=",
        tests::is_gt: "gt" "greaterthan" ">", tests::is_ge: "ge" ">=", tests::is_in: "in",
    ]
}

/// Every namespace that was made, to be emptied in the end: one may hold itself.
#[derive(Clone, Default)]
pub(super) struct Namespaces(Arc<Mutex<Vec<Value>>>);

/// An interpreter for one rendering.
pub(super) fn new(
    budget: &Budget,
    namespaces: &Namespaces,
    limits: TemplateLimits,
    clock: Option<Clock>,
) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.recursion);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.remove_global("debug");
    environment.remove_filter("pprint");
    let counted = budget.clone();
    environment.set_formatter(move |out, _, value| emit(&counted, out, value));
    let counted = budget.clone();
    environment.set_unknown_method_callback(move |state, value, name, args| {
        methods::call(&counted, state, value, name, args)
    });
    count_builtins(&mut environment, budget);
    add_operators(&mut environment, budget);
    add_filters(&mut environment, budget);
    add_tests(&mut environment);
    add_functions(&mut environment, budget, namespaces, clock);
    environment
}

/// Writes a value the way Python prints it.
fn emit(budget: &Budget, out: &mut Output, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => {
            budget.charge(text.len() as u64)?;
            out.write_str(text)
        }
        None => out.write_str(&python::str_of(budget, value)?),
    };
    written.map_err(|error| Error::new(ErrorKind::WriteFailure, error.to_string()))
}

fn count_builtins(environment: &mut Environment<'static>, budget: &Budget) {
    for does in [Does::Nothing, Does::Compare, Does::Nest] {
        for (name, filter) in filters_that(does) {
            let budget = budget.clone();
            environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                args.iter().try_for_each(|value| match does {
                    Does::Compare => budget.compared(value),
                    Does::Nothing | Does::Nest => budget.seen(value),
                })?;
                let made = filter.call(state, &args)?;
                match does {
                    Does::Nest => budget.charge_container(&made)?,
                    Does::Nothing | Does::Compare => budget.charge_value(&made)?,
                }
                Ok::<_, Error>(made)
            });
        }
    }
    for (name, test) in tests_that_compare() {
        let budget = budget.clone();
        environment.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| budget.compared(value))?;
            test.call(state, &args).map(|result| result.is_true())
        });
    }
}

/// The functions that [`guard`] puts in the place of operators.
fn add_operators(environment: &mut Environment<'static>, budget: &Budget) {
    let counted = budget.clone();
    environment.add_filter(guard::MADE, move |value: Value| {
        counted.charge_value(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::CONTAINER, move |value: Value| {
        counted.charge_container(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::SEEN, move |value: Value| {
        counted.seen(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::COMPARED, move |value: Value| {
        counted.compared(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::CONCAT, move |left: Value, right: Value| {
        let mut text = python::str_of(&counted, &left)?;
        text.push_str(&python::str_of(&counted, &right)?);
        counted.charge(text.len() as u64)?;
        Ok::<_, Error>(text)
    });
    let counted = budget.clone();
    environment.add_filter(guard::MULTIPLY, move |left: Value, right: Value| {
        multiply(&counted, &left, &right)
    });
    let counted = budget.clone();
    environment.add_filter(
        guard::SLICE,
        move |value: Value, start: Value, stop: Value, step: Value| {
            slice(&counted, &value, [&start, &stop, &step])
        },
    );
    let counted = budget.clone();
    environment.add_filter(guard::REMAINDER, move |left: Value, right: Value| {
        remainder(&counted, &left, &right)
    });
}

/// `value[start:stop:step]` as in Python; what is undefined or none has no elements.
fn slice(budget: &Budget, value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() || value.is_undefined() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let [start, stop, step] = bounds;
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if let Some(text) = value.as_str() {
        budget.charge(text.len() as u64)?;
        let chars: Vec<char> = text.chars().collect();
        let picked = slice_indices(chars.len(), start, stop, step)?;
        return Ok(Value::from(picked.map(|i| chars[i]).collect::<String>()));
    }
    let items: Vec<Value> = match value.kind() {
        ValueKind::Undefined | ValueKind::None => Vec::new(),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        other => return Err(invalid(format!("a value of type {other} cannot be sliced"))),
    };
    let picked: Vec<Value> = slice_indices(items.len(), start, stop, step)?
        .map(|i| items[i].clone())
        .collect();
    let made = match value.downcast_object_ref::<Tuple>() {
        Some(_) => Value::from(Tuple::from(picked)),
        None => Value::from(picked),
    };
    budget.charge_value(&made)?;
    Ok(made)
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

fn add_filters(environment: &mut Environment<'static>, budget: &Budget) {
    let counted = budget.clone();
    environment.add_filter("string", move |value: Value| {
        python::str_of(&counted, &value)
    });
    let counted = budget.clone();
    environment.add_filter(
        "tojson",
        move |value: Value, args: Rest<Value>, kwargs: Kwargs| {
            json::tojson(&counted, &value, &args, &kwargs)
        },
    );
    let counted = budget.clone();
    environment.add_filter(
        "join",
        move |value: Value, joiner: Option<String>, attribute: Option<Value>, kwargs: Kwargs| {
            let joiner = match joiner {
                Some(joiner) => joiner,
                None => kwargs.get::<Option<String>>("d")?.unwrap_or_default(),
            };
            let attribute = match attribute {
                Some(attribute) => Some(attribute),
                None => kwargs.get::<Option<Value>>("attribute")?,
            };
            kwargs.assert_all_used()?;
            join(&counted, &value, &joiner, attribute.as_ref())
        },
    );
    let counted = budget.clone();
    environment.add_filter(
        "replace",
        move |text: Value, from: String, to: String, count: Option<usize>| {
            let text = python::str_of(&counted, &text)?;
            methods::replace(&counted, &text, &from, &to, count)
        },
    );
    let counted = budget.clone();
    environment.add_filter(
        "indent",
        move |text: String,
              width: Option<Value>,
              first: Option<bool>,
              blank: Option<bool>,
              kwargs: Kwargs| {
            let width = match width {
                Some(width) => Some(width),
                None => kwargs.get::<Option<Value>>("width")?,
            };
            let first = first.or(kwargs.get::<Option<bool>>("first")?);
            let blank = blank.or(kwargs.get::<Option<bool>>("blank")?);
            kwargs.assert_all_used()?;
            indent(
                &counted,
                &text,
                width,
                first.unwrap_or_default(),
                blank.unwrap_or_default(),
            )
        },
    );
    for name in ["e", "escape"] {
        let counted = budget.clone();
        environment.add_filter(name, move |value: Value| {
            let text = python::str_of(&counted, &value)?;
            let escaped = escape(&text);
            counted.charge(escaped.len() as u64).map(|()| escaped)
        });
    }
    let counted = budget.clone();
    environment.add_filter("format", move |text: String, args: Rest<Value>| {
        printf(&counted, &text, &args)
    });
}

/// Jinja's own meaning of these: whatever has a length and elements is a sequence.
fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined() || value.try_iter().is_ok()
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("callable", |value: &Value| {
        value.as_object().is_some()
            && !matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
            )
    });
}

fn add_functions(
    environment: &mut Environment<'static>,
    budget: &Budget,
    namespaces: &Namespaces,
    clock: Option<Clock>,
) {
    environment.add_function("raise_exception", |message: Option<Value>| {
        let message = message.map(|value| value.to_string()).unwrap_or_default();
        Err::<Value, Error>(Error::new(
            ErrorKind::InvalidOperation,
            format!("{REFUSED_PREFIX}{message}"),
        ))
    });
    if let Some(clock) = clock {
        environment.add_function("strftime_now", move |format: String| {
            clock.format(&format).map_err(|directive| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know '%{directive}'"),
                )
            })
        });
    }
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("cycler", minijinja_contrib::globals::cycler);
    let functions: Vec<(String, Value)> = environment
        .globals()
        .filter(|(name, _)| matches!(*name, "dict" | "namespace"))
        .map(|(name, function)| (name.to_owned(), function.clone()))
        .collect();
    for (name, function) in functions {
        let (budget, namespaces) = (budget.clone(), namespaces.clone());
        let is_namespace = name == "namespace";
        environment.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let made = function.call(state, &args)?;
            budget.charge_container(&made)?;
            if is_namespace {
                namespaces.remember(&made);
            }
            Ok(made)
        });
    }
}

impl Namespaces {
    fn remember(&self, namespace: &Value) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.push(namespace.clone());
    }

    /// Takes out everything that was assigned to a namespace.
    pub(super) fn clear(&self) {
        let made = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let environment = Environment::new();
        for namespace in made {
            let Ok(keys) = namespace.try_iter() else {
                continue;
            };
            let is_name = |key: &str| {
                !key.starts_with(|c: char| c.is_ascii_digit())
                    && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            let program: String = keys
                .filter_map(|key| key.as_str().filter(|key| is_name(key)).map(str::to_owned))
                .map(|key| format!("{{% set namespace.{key} = none %}}"))
                .collect();
            // Nothing in it can fail; if it did, the worst is a value that lives on.
            let _ = environment.render_str(&program, minijinja::context! { namespace });
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Numbers, or a text or list so many times.
fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_many = |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable
        )
    };
    let (many, times) = match (is_many(left), is_many(right)) {
        (true, false) => (left, right),
        (false, true) => (right, left),
        (true, true) => return Err(invalid("'*' between two sequences")),
        (false, false) => return multiply_numbers(left, right),
    };
    let times = i64::try_from(times.clone())
        .map_err(|_| invalid(format!("'*' between a sequence and {}", times.kind())))?;
    let times = usize::try_from(times).unwrap_or_default();
    budget.charge(size_of_value(many).saturating_mul(times as u64))?;
    if let Some(text) = many.as_str() {
        return Ok(Value::from(text.repeat(times)));
    }
    let items: Vec<Value> = many.try_iter()?.collect();
    let repeated = std::iter::repeat_n(items, times).flatten();
    Ok(Value::from(repeated.collect::<Vec<Value>>()))
}

fn multiply_numbers(left: &Value, right: &Value) -> Result<Value, Error> {
    let whole = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if whole(left) && whole(right) {
        let integer = |value: &Value| match value.kind() {
            ValueKind::Bool => Ok(i128::from(value.is_true())),
            _ => i128::try_from(value.clone()),
        };
        return integer(left)?
            .checked_mul(integer(right)?)
            .map(Value::from)
            .ok_or_else(|| invalid("'*' passes the range of integers"));
    }
    Ok(Value::from(
        f64::try_from(left.clone())? * f64::try_from(right.clone())?,
    ))
}

/// Numbers, or a text in which `%s` and kin are filled in.
fn remainder(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let is_tuple = right.downcast_object_ref::<Tuple>().is_some();
        let args: Vec<Value> = match is_tuple {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        return printf(budget, text, &args).map(Value::from);
    }
    if left.is_integer() && right.is_integer() {
        let (left, right) = (
            i128::try_from(left.clone())?,
            i128::try_from(right.clone())?,
        );
        let remainder = left
            .checked_rem_euclid(right)
            .ok_or_else(|| invalid("'%' by zero"))?;
        // Python's remainder has the sign of the divisor.
        let shifted = if remainder != 0 && right < 0 {
            remainder + right
        } else {
            remainder
        };
        return Ok(Value::from(shifted));
    }
    let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    Ok(Value::from(left - right * (left / right).floor()))
}

/// `format % args`, with lists and maps printed as Python does.
fn printf(budget: &Budget, text: &str, args: &[Value]) -> Result<String, Error> {
    methods::check_widths(text)?;
    let args: Vec<Value> = args
        .iter()
        .map(|value| printable(budget, value))
        .collect::<Result<_, _>>()?;
    let made = format(FormatStyle::Printf, text, &args)?;
    budget.charge(made.len() as u64)?;
    Ok(made)
}

/// Numbers as they are, for they have formats of their own; everything else as its text.
pub(super) fn printable(budget: &Budget, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Number => Ok(value.clone()),
        _ => Ok(Value::from(python::str_of(budget, value)?)),
    }
}

/// The escapes of HTML as Jinja writes them.
fn escape(text: &str) -> String {
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
    out
}

fn join(
    budget: &Budget,
    value: &Value,
    joiner: &str,
    attribute: Option<&Value>,
) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        if index > 0 {
            budget.charge(joiner.len() as u64)?;
            out.push_str(joiner);
        }
        out.push_str(&python::str_of(budget, &item)?);
    }
    Ok(out)
}

fn indent(
    budget: &Budget,
    text: &str,
    width: Option<Value>,
    first: bool,
    blank: bool,
) -> Result<String, Error> {
    let width = width.unwrap_or_else(|| Value::from(4));
    let unit = match width.as_str() {
        Some(unit) => unit.to_owned(),
        None => match usize::try_from(width) {
            Ok(width) if width <= 1 << 16 => " ".repeat(width),
            _ => return Err(invalid("indent: a width up to 65536 or a text")),
        },
    };
    let lines: Vec<&str> = text.split('\n').collect();
    budget.charge((lines.len() as u64).saturating_mul(unit.len() as u64))?;
    budget.charge(text.len() as u64)?;
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let wanted = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if wanted {
            out.push_str(&unit);
        }
        out.push_str(line);
    }
    Ok(out)
}
