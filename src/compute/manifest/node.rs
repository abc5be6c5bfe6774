//! Strict JSON reader: each value has its line and path, each object its fields.

use std::collections::HashSet;
use std::fmt;

use serde_json::value::RawValue;

use crate::core::error::{Error, ErrorKind, Result};

/// Maximum size of a document.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// Maximum nesting of arrays and objects.
const DEPTH_MAX: usize = 16;
/// Maximum number of items of an array, which bounds the time to check a document.
const ITEMS_MAX: usize = 4096;

/// A document and the ends of its lines.
pub(super) struct Document<'a> {
    text: &'a str,
    line_ends: Vec<usize>,
}

fn malformed(message: String) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

impl<'a> Document<'a> {
    /// Checks size, depth and syntax of the whole text.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() > BYTES_MAX {
            let message = format!("a manifest of {} bytes, at most {BYTES_MAX}", bytes.len());
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let line_ends: Vec<_> = bytes
            .iter()
            .enumerate()
            .filter_map(|(at, &byte)| (byte == b'\n').then_some(at))
            .collect();
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = line_at(&line_ends, error.valid_up_to());
            malformed(format!("line {line}: bytes that are not UTF-8"))
        })?;
        let document = Self { text, line_ends };
        document.check_depth()?;
        serde_json::from_str::<&RawValue>(text).map_err(|error| {
            // serde_json appends the position to its message.
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            malformed(format!("line {}: {what}", error.line()))
        })?;
        Ok(document)
    }

    pub(super) fn root(&self) -> Node<'_> {
        Node {
            document: self,
            raw: self.text,
            path: String::new(),
        }
    }

    fn check_depth(&self) -> Result<()> {
        let (mut depth, mut is_text, mut is_escaped) = (0, false, false);
        for (at, byte) in self.text.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_text => is_escaped = true,
                b'"' => is_text = !is_text,
                b'[' | b'{' if !is_text => depth += 1,
                b']' | b'}' if !is_text => depth = usize::saturating_sub(depth, 1),
                _ => {}
            }
            if depth > DEPTH_MAX {
                let line = line_at(&self.line_ends, at);
                let message = format!("line {line}: nested deeper than {DEPTH_MAX}");
                return Err(Error::new(ErrorKind::LimitExceeded, message));
            }
        }
        Ok(())
    }
}

/// Line number, from 1.
fn line_at(line_ends: &[usize], offset: usize) -> usize {
    line_ends.partition_point(|&end| end < offset) + 1
}

/// One value of a document.
#[derive(Clone)]
pub(super) struct Node<'a> {
    document: &'a Document<'a>,
    raw: &'a str,
    path: String,
}

impl<'a> Node<'a> {
    pub(super) fn line(&self) -> usize {
        let raw = self.raw.trim_start();
        let offset = raw.as_ptr().addr() - self.document.text.as_ptr().addr();
        line_at(&self.document.line_ends, offset)
    }

    /// An error at this value.
    pub(super) fn error(&self, what: impl fmt::Display) -> Error {
        let place = if self.path.is_empty() {
            "the document"
        } else {
            &self.path
        };
        malformed(format!("line {}: {place}: {what}", self.line()))
    }

    fn child(&self, raw: &'a RawValue, path: String) -> Node<'a> {
        Node {
            document: self.document,
            raw: raw.get(),
            path,
        }
    }

    /// The fields of an object. Unknown and duplicate fields are errors.
    pub(super) fn object(&self, known: &[&str]) -> Result<Object<'a>> {
        let pairs: Pairs<'a> =
            serde_json::from_str(self.raw).map_err(|_| self.error("is no object"))?;
        let (mut fields, mut seen) = (Vec::new(), HashSet::new());
        for (name, raw) in pairs.0 {
            let dot = if self.path.is_empty() { "" } else { "." };
            let shown: String = name
                .chars()
                .take(64)
                .flat_map(char::escape_default)
                .collect();
            let node = self.child(raw, format!("{}{dot}{shown}", self.path));
            if !known.contains(&name.as_str()) {
                return Err(node.error(format!("no such field; there are {}", known.join(", "))));
            }
            if !seen.insert(name.clone()) {
                return Err(node.error("given twice"));
            }
            fields.push((name, node));
        }
        Ok(Object {
            line: self.line(),
            path: self.path.clone(),
            fields,
        })
    }

    pub(super) fn array(&self) -> Result<Vec<Node<'a>>> {
        let items: Vec<&'a RawValue> =
            serde_json::from_str(self.raw).map_err(|_| self.error("is no array"))?;
        if items.len() > ITEMS_MAX {
            return Err(self.error(format!("has {} items, at most {ITEMS_MAX}", items.len())));
        }
        let child = |(index, raw)| self.child(raw, format!("{}[{index}]", self.path));
        Ok(items.into_iter().enumerate().map(child).collect())
    }

    pub(super) fn is_array(&self) -> bool {
        self.raw.trim_start().starts_with('[')
    }

    pub(super) fn text(&self) -> Result<String> {
        serde_json::from_str(self.raw).map_err(|_| self.error("is no text"))
    }

    pub(super) fn truth(&self) -> Result<bool> {
        serde_json::from_str(self.raw).map_err(|_| self.error("is not true or false"))
    }

    pub(super) fn u32(&self) -> Result<u32> {
        serde_json::from_str(self.raw)
            .map_err(|_| self.error(format!("is no integer of 0 to {}", u32::MAX)))
    }

    /// The index of one of these texts.
    pub(super) fn choice(&self, choices: &[&str]) -> Result<usize> {
        let text = self.text()?;
        let found = choices.iter().position(|choice| *choice == text);
        found.ok_or_else(|| self.error(format!("is not one of {}", choices.join(", "))))
    }

    /// An integer, or a text that contains an expression.
    pub(super) fn expression(&self) -> Result<String> {
        let text = match serde_json::from_str::<i64>(self.raw) {
            Ok(number) => number.to_string(),
            Err(_) => serde_json::from_str::<String>(self.raw)
                .map_err(|_| self.error("is no integer and no expression"))?,
        };
        let mut depth = 0;
        let is_list = text.chars().any(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0 && c == ','
        });
        if is_list || text.trim().is_empty() {
            return Err(self.error("is not one expression"));
        }
        Ok(text)
    }

    /// A number in its original spelling, or an expression.
    pub(super) fn bound(&self) -> Result<String> {
        match serde_json::from_str::<f64>(self.raw) {
            Ok(_) => Ok(self.raw.trim().to_owned()),
            Err(_) => self.expression(),
        }
    }

    /// Follows a path of the native library from here as far as possible, for example "parameters[2].shape"; its
    /// `parameters` are the field `params` of the file.
    pub(super) fn follow(self, path: &str) -> Node<'a> {
        let mut node = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let step = if step == "parameters" { "params" } else { step };
            let next = match step.strip_suffix(']') {
                Some(index) => node.array().ok().and_then(|items| {
                    let index: usize = index.parse().ok()?;
                    items.into_iter().nth(index)
                }),
                None => serde_json::from_str::<Pairs<'a>>(node.raw)
                    .ok()
                    .and_then(|pairs| {
                        let (name, raw) = pairs.0.into_iter().find(|(name, _)| name == step)?;
                        Some(node.child(raw, format!("{}.{name}", node.path)))
                    }),
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }
}

/// The fields of an object, which are taken one by one.
pub(super) struct Object<'a> {
    line: usize,
    path: String,
    fields: Vec<(String, Node<'a>)>,
}

impl<'a> Object<'a> {
    pub(super) fn take(&mut self, name: &str) -> Option<Node<'a>> {
        let index = self.fields.iter().position(|(field, _)| field == name)?;
        Some(self.fields.swap_remove(index).1)
    }

    pub(super) fn peek(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == name)
    }

    /// Any field that has not been taken.
    pub(super) fn any(&mut self) -> Option<Node<'a>> {
        self.fields.pop().map(|(_, node)| node)
    }

    pub(super) fn need(&mut self, name: &str) -> Result<Node<'a>> {
        self.take(name)
            .ok_or_else(|| self.error(format!("'{name}' is missing")))
    }

    /// An error at the object.
    pub(super) fn error(&self, what: impl fmt::Display) -> Error {
        let place = if self.path.is_empty() {
            "the document"
        } else {
            &self.path
        };
        malformed(format!("line {}: {place}: {what}", self.line))
    }
}

/// Names and values of an object in order, duplicates included.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
