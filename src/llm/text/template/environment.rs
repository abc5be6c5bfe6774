//! Filters, tests, functions and methods of templates, each charged to the budget.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, filters, tests,
};

use super::budget::Budget;
use super::generator::Generator;
use super::operators::{self, invalid};
use super::{Clock, TemplateLimits, guard, json, methods, python};

/// Begins the message of every error that a template raises itself.
pub(super) const REFUSED_PREFIX: &str = "refused: ";

/// What a filter of the interpreter costs.
#[derive(Clone, Copy, PartialEq)]
enum Cost {
    /// It reads its argument and returns something small, or the argument itself.
    Read,
    /// It makes a text about as long as its argument.
    Text,
    /// It visits each element and makes a list.
    List,
    /// The same, and it compares elements.
    Compare,
    /// The same as `List`, and its result nests one level deeper.
    Nest,
}

/// Names of functions of the interpreter, as values.
macro_rules! builtins {
    ($($module:ident :: $function:ident: $($name:literal)+),+ $(,)?) => {
        vec![$($(($name, Value::from_function($module::$function)),)+)+]
    };
}

fn filters_of(cost: Cost) -> Vec<(&'static str, Value)> {
    match cost {
        Cost::Read => builtins![
            filters::length: "length" "count", filters::default: "default" "d",
            filters::round: "round", filters::abs: "abs", filters::attr: "attr",
        ],
        Cost::Text => builtins![
            filters::lower: "lower", filters::upper: "upper", filters::title: "title",
            filters::capitalize: "capitalize", filters::trim: "trim",
        ],
        Cost::List => builtins![
            filters::reverse: "reverse", filters::first: "first", filters::last: "last",
            filters::list: "list", filters::select: "select", filters::reject: "reject",
            filters::selectattr: "selectattr", filters::rejectattr: "rejectattr",
            filters::map: "map",
        ],
        Cost::Compare => builtins![
            filters::sort: "sort", filters::unique: "unique", filters::min: "min",
            filters::max: "max", filters::sum: "sum",
        ],
        Cost::Nest => builtins![
            filters::batch: "batch", filters::slice: "slice", filters::groupby: "groupby",
            filters::items: "items", filters::dictsort: "dictsort",
        ],
    }
}

/// Filters of the interpreter that Jinja does not have.
const FOREIGN_FILTERS: &[&str] = &[
    "bool",
    "chain",
    "lines",
    "pprint",
    "split",
    "urlencode",
    "zip",
];

fn tests_that_compare() -> Vec<(&'static str, Value)> {
    builtins![
        tests::is_eq: "eq" "equalto" "==", tests::is_ne: "ne" "!=",
        tests::is_in: "in",
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
    for name in FOREIGN_FILTERS {
        environment.remove_filter(name);
    }
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
            budget.text(text.len())?;
            out.write_str(text)
        }
        None => {
            let text = python::str_of(budget, value)?;
            budget.text(text.len())?;
            out.write_str(&text)
        }
    };
    written.map_err(|error| Error::new(ErrorKind::WriteFailure, error.to_string()))
}

fn count_builtins(environment: &mut Environment<'static>, budget: &Budget) {
    for cost in [
        Cost::Read,
        Cost::Text,
        Cost::List,
        Cost::Compare,
        Cost::Nest,
    ] {
        for (name, filter) in filters_of(cost) {
            let budget = budget.clone();
            environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
                let mut args = args.into_values();
                if let Some(value) = args.first_mut() {
                    *value = operand(name, cost, value)?;
                }
                charge_filter(&budget, cost, &args)?;
                check_elements(name, &args)?;
                let made = filter.call(state, &args)?;
                match cost {
                    Cost::Nest => budget.container(&made)?,
                    Cost::Read => {}
                    _ => budget.made(&made)?,
                }
                match GENERATORS.contains(&name) {
                    true => Ok::<_, Error>(Generator::value(made.try_iter()?.collect())),
                    false => Ok(made),
                }
            });
        }
    }
    for (name, test) in tests_that_compare() {
        let budget = budget.clone();
        environment.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| budget.compared(value))?;
            if let (true, [item, container]) = (name == "in", &args[..]) {
                operators::check_membership(item, container)?;
            }
            test.call(state, &args).map(|result| result.is_true())
        });
    }
}

/// Filters whose results are generators in Jinja.
const GENERATORS: &[&str] = &[
    "batch",
    "items",
    "map",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "unique",
];

/// The first argument of a filter as Jinja takes it: an undefined value is an empty sequence to most
/// filters, as is anything false to some; a map stands for its keys; a boolean is a number.
fn operand(name: &str, cost: Cost, value: &Value) -> Result<Value, Error> {
    let iterates = matches!(cost, Cost::List | Cost::Compare | Cost::Nest);
    let takes_false = matches!(
        name,
        "map" | "select" | "reject" | "selectattr" | "rejectattr"
    );
    let is_empty = match value.kind() {
        ValueKind::Undefined => iterates || matches!(name, "length" | "count"),
        _ => takes_false && !value.is_true(),
    };
    match value.kind() {
        _ if is_empty && name == "items" => Ok(Value::from(BTreeMap::<String, Value>::new())),
        _ if is_empty && name != "dictsort" => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::None if iterates => Err(invalid("none is not iterable")),
        ValueKind::Bool if matches!(name, "abs" | "round") => {
            Ok(Value::from(i64::from(value.is_true())))
        }
        ValueKind::Map if matches!(name, "last" | "reverse") => {
            Ok(Value::from(value.try_iter()?.collect::<Vec<Value>>()))
        }
        ValueKind::Iterable if matches!(name, "length" | "count") => {
            match Generator::remaining(value) {
                Some(_) => Err(invalid("a generator has no length")),
                None => Ok(value.clone()),
            }
        }
        _ => Ok(value.clone()),
    }
}

/// Fails where the elements of a list cannot be ordered or hashed in Python, as a filter needs it.
fn check_elements(name: &str, args: &[Value]) -> Result<(), Error> {
    let has_attribute = args.iter().any(|arg| {
        arg.is_kwargs()
            && arg
                .get_attr("attribute")
                .is_ok_and(|value| !value.is_undefined())
    });
    let Some(items) = args.first() else {
        return Ok(());
    };
    if has_attribute || Generator::remaining(items).is_some() {
        return Ok(());
    }
    match name {
        "sort" | "min" | "max" => {
            let all: Vec<Value> = items.try_iter()?.collect();
            let mut pairs = all.windows(2);
            pairs.try_for_each(|pair| operators::ordered(&pair[0], &pair[1]).map(drop))
        }
        "unique" => items
            .try_iter()?
            .try_for_each(|item| operators::check_hashable(&item)),
        _ => Ok(()),
    }
}

/// Charges for what a filter is about to do with its first argument, and for reading the others.
fn charge_filter(budget: &Budget, cost: Cost, args: &[Value]) -> Result<(), Error> {
    for value in args {
        budget.read(value.as_str().map_or(0, str::len) as u64)?;
    }
    let Some(value) = args.first() else {
        return Ok(());
    };
    match cost {
        Cost::Read => budget.look_up(value)?,
        Cost::Text => budget.text(value.as_str().map_or(0, str::len))?,
        Cost::List => budget.list(budget.visit(value)?)?,
        Cost::Compare => {
            budget.compared(value)?;
            budget.list(budget.visit(value)?)?;
        }
        // Each element may become a list of its own.
        Cost::Nest => budget.list(budget.visit(value)?.saturating_mul(4))?,
    }
    // `batch` and `slice` make as many elements as their second argument says.
    match args.get(1).map(|count| i64::try_from(count.clone())) {
        Some(Ok(count)) if cost == Cost::Nest => {
            let count = u64::try_from(count).unwrap_or(0);
            budget.steps(count)?;
            budget.list(count.saturating_mul(2))
        }
        _ => Ok(()),
    }
}

/// The functions that [`guard`] puts in the place of operators.
fn add_operators(environment: &mut Environment<'static>, budget: &Budget) {
    let counted = budget.clone();
    environment.add_filter(guard::SUM, move |left: Value, right: Value| {
        operators::sum(&counted, &left, &right)
    });
    let counted = budget.clone();
    environment.add_filter(guard::CONTAINER, move |value: Value| {
        counted.container(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::LOOKED_UP, move |value: Value| {
        counted.look_up(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::COMPARED, move |value: Value| {
        counted.compared(&value).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::SPREAD, move |value: Value| {
        counted.list(counted.visit(&value)?).map(|()| value)
    });
    let counted = budget.clone();
    environment.add_filter(guard::CONCAT, move |left: Value, right: Value| {
        operators::concat(&counted, &left, &right)
    });
    let counted = budget.clone();
    environment.add_filter(guard::MULTIPLY, move |left: Value, right: Value| {
        operators::multiply(&counted, &left, &right)
    });
    let counted = budget.clone();
    environment.add_filter(
        guard::SLICE,
        move |value: Value, start: Value, stop: Value, step: Value| {
            operators::slice(&counted, &value, [&start, &stop, &step])
        },
    );
    let counted = budget.clone();
    environment.add_filter(guard::REMAINDER, move |left: Value, right: Value| {
        operators::remainder(&counted, &left, &right)
    });
    // A loop knows the length of what it runs over, which a generator does not.
    environment.add_filter(guard::ITERATED, |value: Value| match value.is_none() {
        true => Err(invalid("none is not iterable")),
        false if Generator::remaining(&value).is_some() => {
            Ok(Value::from(value.try_iter()?.collect::<Vec<Value>>()))
        }
        false => Ok(value),
    });
    for (filter, test, holds) in ORDERS {
        let counted = budget.clone();
        let compare =
            move |left: Value, right: Value| operators::order(&counted, &left, &right).map(holds);
        environment.add_filter(*filter, compare.clone());
        for name in *test {
            environment.add_test(*name, compare.clone());
        }
    }
    let counted = budget.clone();
    environment.add_filter(
        guard::IN,
        move |state: &State, item: Value, container: Value| {
            counted.compared(&item)?;
            counted.compared(&container)?;
            operators::check_membership(&item, &container)?;
            tests::is_in(state, &item, &container)
        },
    );
}

/// The filter that stands for an operator, the tests of the same meaning, and the orders that hold.
type Order = (&'static str, &'static [&'static str], fn(Ordering) -> bool);
const ORDERS: &[Order] = &[
    (guard::LESS, &["lt", "lessthan", "<"], Ordering::is_lt),
    (guard::LESS_EQUAL, &["le", "<="], Ordering::is_le),
    (guard::GREATER, &["gt", "greaterthan", ">"], Ordering::is_gt),
    (guard::GREATER_EQUAL, &["ge", ">="], Ordering::is_ge),
];

fn add_filters(environment: &mut Environment<'static>, budget: &Budget) {
    let counted = budget.clone();
    environment.add_filter("string", move |value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => python::str_of(&counted, &value).map(Value::from),
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
        move |text: Value,
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
            let text = text
                .as_str()
                .ok_or_else(|| invalid(format!("{} cannot be indented", text.kind())))?;
            indent(
                &counted,
                text,
                width,
                first.unwrap_or_default(),
                blank.unwrap_or_default(),
            )
        },
    );
    for name in ["e", "escape", "forceescape"] {
        let counted = budget.clone();
        environment.add_filter(name, move |value: Value| {
            if value.is_safe() && name != "forceescape" {
                return Ok(value);
            }
            let text = python::str_of(&counted, &value)?;
            operators::escape(&counted, &text).map(Value::from_safe_string)
        });
    }
    let counted = budget.clone();
    environment.add_filter("safe", move |value: Value| {
        python::str_of(&counted, &value).map(Value::from_safe_string)
    });
    let counted = budget.clone();
    environment.add_filter("format", move |text: Value, args: Rest<Value>| {
        let text = match text.as_str() {
            Some(_) => text,
            None => Value::from(python::str_of(&counted, &text)?),
        };
        operators::printf(&counted, &text, &args, false)
    });
    environment.add_filter(
        "int",
        |value: Value, default: Option<Value>, base: Option<u32>| {
            let default = default.unwrap_or_else(|| Value::from(0));
            to_int(&value, base.unwrap_or(10)).map(|number| number.unwrap_or(default))
        },
    );
    environment.add_filter("float", |value: Value, default: Option<Value>| {
        let default = default.unwrap_or_else(|| Value::from(0.0));
        to_float(&value).map(|number| number.map_or(default, Value::from))
    });
}

/// A number without its fraction, or the number that a text spells; None for everything else.
fn to_int(value: &Value, base: u32) -> Result<Option<Value>, Error> {
    if value.is_undefined() {
        return Err(invalid("an undefined value is no number"));
    }
    if value.is_integer() {
        return Ok(Some(value.clone()));
    }
    if let Some(text) = value.as_str() {
        let text = text.trim();
        let digits = match base {
            16 => text.trim_start_matches("0x"),
            8 => text.trim_start_matches("0o"),
            2 => text.trim_start_matches("0b"),
            _ => text,
        };
        let in_base = (2..=36)
            .contains(&base)
            .then(|| i128::from_str_radix(digits, base).ok());
        if let Some(Some(number)) = in_base {
            return Ok(Some(Value::from(number)));
        }
    }
    let number = to_float(value)?.filter(|number| number.is_finite());
    Ok(number.map(|number| Value::from(number.trunc() as i128)))
}

/// A number, or the one that a text spells; None for everything else.
fn to_float(value: &Value) -> Result<Option<f64>, Error> {
    match value.as_str() {
        Some(text) => Ok(text.trim().parse().ok()),
        None if value.is_undefined() => Err(invalid("an undefined value is no number")),
        None => Ok(operators::float(value)),
    }
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
        matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Map
                | ValueKind::Iterable
                | ValueKind::String
                | ValueKind::Undefined
        )
    });
    for (name, remainder) in [("even", 0.0), ("odd", 1.0)] {
        environment.add_test(name, move |value: &Value| {
            let number = operators::float(value)
                .ok_or_else(|| invalid(format!("{} is neither even nor odd", value.kind())))?;
            Ok::<_, Error>(number.rem_euclid(2.0) == remainder)
        });
    }
    environment.add_test("divisibleby", |value: &Value, divisor: Value| {
        match (operators::float(value), operators::float(&divisor)) {
            (Some(number), Some(divisor)) if divisor != 0.0 => {
                Ok::<_, Error>(number.rem_euclid(divisor) == 0.0)
            }
            _ => Err(invalid(format!("{} is divisible by nothing", value.kind()))),
        }
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("callable", |value: &Value| {
        value.is_undefined()
            || value.as_object().is_some()
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
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.0)
    });
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
            budget.container(&made)?;
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

fn join(
    budget: &Budget,
    value: &Value,
    joiner: &str,
    attribute: Option<&Value>,
) -> Result<String, Error> {
    let mut out = String::new();
    if value.is_none() {
        return Err(invalid("none is not iterable"));
    }
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        budget.steps(1)?;
        if index > 0 {
            budget.text(joiner.len())?;
            out.push_str(joiner);
        }
        let item = python::str_of(budget, &item)?;
        budget.text(item.len())?;
        out.push_str(&item);
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
    let lines = text.split('\n').count();
    budget.text(lines.saturating_mul(unit.len()))?;
    budget.text(text.len())?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
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
