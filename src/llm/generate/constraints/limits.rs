//! Checks a rule before it is compiled. Compilers of grammars call themselves for each definition that names another,
//! and a schema that is combined with others is copied into each of them, so the size of a text bounds neither the
//! stack nor the memory.

use std::collections::HashSet;

use serde_json::{Deserializer, Map, Value, json};

use super::invalid;
use crate::core::error::Result;

/// Most bytes of a rule.
pub const MAX_RULE_BYTES: usize = 256 << 10;
/// Most properties in all objects of a schema.
pub const MAX_PROPERTIES: usize = 1000;
/// Most values or brackets inside of each other.
pub const MAX_DEPTH: usize = 64;
/// Most definitions and brackets of a grammar.
pub const MAX_DEFINITIONS: usize = 4000;
/// Most values around the `$ref`s of a schema: the sum of their depths.
pub const MAX_REFERENCE_DEPTH: usize = 10_000;
/// Most values of a schema whose references have to be replaced by what they refer to.
pub const MAX_VALUES: usize = 300_000;
/// Most `$ref`s of such a schema, if what they refer to depends on names or bases.
const MAX_NAMED_REFERENCES: usize = 8;

/// White space between the parts of a JSON text. It has an end, because a small model may find none.
const WHITE_SPACE: &str = "[ \\n\\r\\t]{1,40}";

/// Keywords that do not restrict values.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

pub(super) fn check_size(bytes: usize) -> Result<()> {
    if bytes <= MAX_RULE_BYTES {
        return Ok(());
    }
    Err(invalid(format!(
        "{bytes} bytes, at most {MAX_RULE_BYTES} are accepted"
    )))
}

/// Checks a grammar in Lark's syntax. Returns it with the white space of the schemas in it set. The text is split as
/// llguidance splits it, except where that refuses it.
pub(super) fn checked_lark(text: &str) -> Result<String> {
    check_size(text.len())?;
    let mut checked = String::with_capacity(text.len());
    let (mut definitions, mut depth) = (0, 0usize);
    let mut rest = text;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(part_length(rest)?);
        rest = after;
        checked.push_str(part);
        match part {
            "%json" | "%regex" | "%llguidance" => {
                let mut values = Deserializer::from_str(rest).into_iter::<Value>();
                let value = values.next().transpose();
                let value = value.map_err(|error| invalid(format!("{part}: {error}")))?;
                let (json, after) = rest.split_at(values.byte_offset());
                rest = after;
                match (part, value) {
                    ("%json", Some(schema)) => checked += &checked_schema(schema)?.to_string(),
                    _ => checked += json,
                }
            }
            ":" => definitions += 1,
            "(" | "[" => (definitions, depth) = (definitions + 1, depth + 1),
            "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} brackets inside of each other");
            return Err(invalid(message));
        }
        if definitions > MAX_DEFINITIONS {
            let message = format!("more than {MAX_DEFINITIONS} definitions and brackets");
            return Err(invalid(message));
        }
    }
    Ok(checked)
}

/// The bytes of the first part of a grammar: a text in quotes, a comment, a control token, the name of a directive
/// with a JSON value, or one character.
fn part_length(text: &str) -> Result<usize> {
    let line = || text.find('\n').unwrap_or(text.len());
    let found = match text.as_bytes()[0] {
        b'"' => quoted_length(text).ok_or("a string without an end"),
        b'#' => Ok(line()),
        b'/' if text.starts_with("//") => Ok(line()),
        b'/' => quoted_length(text).ok_or("a regular expression without an end"),
        b'<' => { text.find('>').map(|at| at + 1) }.ok_or("a token without an end"),
        b'%' => {
            let names = ["%json", "%regex", "%llguidance"];
            let name = names.into_iter().find(|name| text.starts_with(name));
            Ok(name.map_or(1, str::len))
        }
        _ => Ok(text.chars().next().map_or(1, char::len_utf8)),
    };
    found.map_err(|message| invalid(message.into()))
}

/// The bytes up to the next character that is the first one, without those behind a `\`.
fn quoted_length(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    let (_, quote) = bytes.next()?;
    while let Some((at, byte)) = bytes.next() {
        if byte == quote {
            return Some(at + 1);
        }
        if byte == b'\\' {
            bytes.next();
        }
    }
    None
}

/// Checks a schema, and sets how JSON is written.
pub(super) fn checked_schema(schema: Value) -> Result<Value> {
    check_size(schema.to_string().len())?;
    let mut found = Found::default();
    found.read(&schema, 0)?;
    found.check_copies(&schema)?;
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(true) => Map::new(),
        other => return Err(invalid(format!("a schema is an object, not {other}"))),
    };
    let options = json!({ "whitespace_pattern": WHITE_SPACE });
    object.insert("x-guidance".into(), options);
    Ok(object.into())
}

/// What a schema has.
#[derive(Default)]
struct Found<'a> {
    properties: usize,
    reference_depth: usize,
    references: HashSet<&'a str>,
    /// Whether a reference may mean something else than a place in the schema.
    has_names: bool,
    /// Whether schemas are combined with others, for which references are replaced by copies.
    combines: bool,
}

impl<'a> Found<'a> {
    fn read(&mut self, value: &'a Value, depth: usize) -> Result<()> {
        if depth >= MAX_DEPTH && (value.is_array() || value.is_object()) {
            let message = format!("more than {MAX_DEPTH} values inside of each other");
            return Err(invalid(message));
        }
        let object = match value {
            Value::Array(list) => {
                let mut values = list.iter();
                return values.try_for_each(|value| self.read(value, depth + 1));
            }
            Value::Object(object) => object,
            _ => return Ok(()),
        };
        if let Some(Value::Object(own)) = object.get("properties") {
            self.properties += own.len();
        }
        if self.properties > MAX_PROPERTIES {
            return Err(invalid(format!("more than {MAX_PROPERTIES} properties")));
        }
        if let Some(Value::String(reference)) = object.get("$ref") {
            self.references.insert(reference);
            self.reference_depth += depth + 1;
            self.has_names |= place(reference).is_none();
        }
        if self.reference_depth > MAX_REFERENCE_DEPTH {
            let message = format!("more than {MAX_REFERENCE_DEPTH} values around all `$ref`s");
            return Err(invalid(message));
        }
        let names = ["$id", "id", "$anchor", "$dynamicAnchor"];
        let is_named = |name: &str| object.get(name).is_some_and(Value::is_string);
        self.has_names |= depth > 0 && names.into_iter().any(is_named);
        self.combines |= combines(object);
        let mut values = object.values();
        values.try_for_each(|value| self.read(value, depth + 1))
    }

    /// Checks how much a schema becomes where each reference is replaced by what it refers to.
    fn check_copies(&self, schema: &'a Value) -> Result<()> {
        if !self.combines {
            return Ok(());
        }
        if self.has_names && self.references.len() > MAX_NAMED_REFERENCES {
            return Err(invalid(format!(
                "a schema that is combined with others has more than {MAX_NAMED_REFERENCES} `$ref`s that \
                 depend on `$id`, on names or on other documents"
            )));
        }
        let mut copies = Copies {
            schema,
            inside: HashSet::new(),
            values: 0,
        };
        copies.count(schema)?;
        // The copies of each of them are kept.
        let mut references = self.references.iter();
        references.try_for_each(|&reference| copies.count_reference(reference))
    }
}

/// Whether what an object says is combined with schemas below it, or these with each other.
fn combines(object: &Map<String, Value>) -> bool {
    let has = |name: &str| object.contains_key(name);
    let is_annotation = |name: &&String| ANNOTATIONS.contains(&name.as_str());
    let restrictions = object.keys().filter(|name| !is_annotation(name)).count();
    let applies = ["$ref", "allOf", "anyOf", "oneOf"];
    let lists = ["const", "enum"];
    applies.into_iter().any(has) && restrictions > 1
        || lists.into_iter().any(has) && restrictions > 1 + usize::from(has("type"))
        || has("allOf") && object["allOf"].as_array().is_some_and(|all| all.len() > 1)
        || has("patternProperties") && has("properties")
}

/// Counts the values of a schema with all copies.
struct Copies<'a> {
    schema: &'a Value,
    /// References around a value. One inside of itself is not replaced.
    inside: HashSet<&'a str>,
    values: usize,
}

impl<'a> Copies<'a> {
    fn count(&mut self, value: &'a Value) -> Result<()> {
        self.values += 1;
        if self.values > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values after each `$ref` is replaced");
            return Err(invalid(message));
        }
        match value {
            Value::Array(list) => {
                let mut values = list.iter();
                values.try_for_each(|value| self.count(value))
            }
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    self.count_reference(reference)?;
                }
                let mut values = object.values();
                values.try_for_each(|value| self.count(value))
            }
            _ => Ok(()),
        }
    }

    fn count_reference(&mut self, reference: &'a str) -> Result<()> {
        let target = place(reference).and_then(|place| self.schema.pointer(place));
        if let Some(target) = target
            && self.inside.insert(reference)
        {
            self.count(target)?;
            self.inside.remove(reference);
        }
        Ok(())
    }
}

/// The place in its own schema that a reference means, if it means one.
fn place(reference: &str) -> Option<&str> {
    let place = reference.strip_prefix('#')?;
    let is_plain = place.is_empty() || place.starts_with('/') && !place.contains('%');
    is_plain.then_some(place)
}
