//! Reads the fields of a request one by one; what nobody has read is unknown.

use std::ops::RangeInclusive;

use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::error::ApiError;

type Result<T> = std::result::Result<T, ApiError>;

/// An object of a request. A field that is null counts as absent.
#[derive(Debug)]
pub struct Fields {
    /// Put before the names in errors: "messages[2]." for example.
    path: String,
    map: Map<String, Value>,
}

/// At most the bytes that a body takes when it is parsed. Lists and maps grow by doubling, and have room for several
/// values from the first one on: maps of either kind that `serde_json` has for at most eleven.
pub fn parsed_bytes(body: &[u8]) -> usize {
    const VALUE: usize = size_of::<Value>();
    const FIELD: usize = VALUE + size_of::<String>();
    let mut bytes = body.len();
    let mut rest = body.iter();
    while let Some(byte) = rest.next() {
        bytes += match byte {
            b',' => 2 * VALUE,
            b'[' => 4 * VALUE,
            b'{' => 12 * FIELD,
            b':' => 2 * FIELD,
            b'"' => {
                while let Some(byte) = rest.next().filter(|byte| **byte != b'"') {
                    if *byte == b'\\' {
                        rest.next();
                    }
                }
                VALUE
            }
            _ => 0,
        };
    }
    bytes
}

impl Fields {
    /// Parses a body.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|error| {
            let at = error.valid_up_to();
            ApiError::malformed(format!("the body is not UTF-8: byte {at} is invalid"))
        })?;
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self::new(String::new(), map)),
            Ok(_) => Err(ApiError::malformed("the body is not a JSON object")),
            Err(error) => Err(ApiError::malformed(format!(
                "the body is not JSON: {error}"
            ))),
        }
    }

    fn new(path: String, map: Map<String, Value>) -> Self {
        Self { path, map }
    }

    /// An object inside of a request.
    pub fn object(path: String, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self::new(path + ".", map)),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// The fields of a request that was made from another one.
    pub fn from_map(map: Map<String, Value>) -> Self {
        Self::new(String::new(), map)
    }

    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// The value of a field, which is known from now on.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// Whether a field is there and has a value.
    pub fn has(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(|value| !value.is_null())
    }

    /// A field that is a string, which stays unread.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.map.get(field)?.as_str()
    }

    pub fn required(&mut self, field: &str) -> Result<Value> {
        self.take(field).ok_or_else(|| {
            let name = self.name(field);
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "missing_required_parameter",
                format!("{name} is required"),
            )
            .with_param(name)
        })
    }

    pub fn boolean(&mut self, field: &str) -> Result<bool> {
        match self.take(field) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(wrong_type(self.name(field), "true or false", &other)),
        }
    }

    pub fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let Some(value) = self.take(field) else {
            return Ok(None);
        };
        let Some(number) = value.as_f64() else {
            return Err(wrong_type(self.name(field), "a number", &value));
        };
        in_range(self.name(field), number, &value, &range)?;
        Ok(Some(number as f32))
    }

    pub fn integer(&mut self, field: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.take(field) else {
            return Ok(None);
        };
        integer(self.name(field), &value, &range).map(Some)
    }

    pub fn string(&mut self, field: &str) -> Result<Option<String>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(self.name(field), "a string", &other)),
        }
    }

    /// A list of token ids.
    pub fn tokens(&mut self, field: &str) -> Result<Option<Vec<u32>>> {
        let name = self.name(field);
        self.take(field)
            .map(|value| tokens(&name, value))
            .transpose()
    }

    pub fn take_object(&mut self, field: &str) -> Result<Option<Self>> {
        let name = self.name(field);
        self.take(field)
            .map(|value| Self::object(name, value))
            .transpose()
    }

    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Fields that change nothing here.
    pub fn skip(&mut self, fields: &[&str]) {
        for field in fields {
            self.map.remove(*field);
        }
    }

    /// Refuses fields that would change the answer, unless their value is one that asks for nothing.
    pub fn refuse(&mut self, fields: &[&str]) -> Result<()> {
        for field in fields {
            match self.take(field) {
                None | Some(Value::Bool(false)) => {}
                Some(Value::Array(list)) if list.is_empty() => {}
                Some(_) => {
                    let name = self.name(field);
                    let message = format!("{name} is not supported by this server");
                    return Err(ApiError::unsupported(name, message));
                }
            }
        }
        Ok(())
    }

    /// Refuses every value but those that are what this server does anyway.
    pub fn only(&mut self, field: &str, accepted: &[Value]) -> Result<()> {
        match self.take(field) {
            Some(value) if !accepted.contains(&value) => {
                let name = self.name(field);
                let shown: Vec<_> = accepted.iter().map(Value::to_string).collect();
                let message = format!("{name} supports only {}", shown.join(" and "));
                Err(ApiError::unsupported(name, message))
            }
            _ => Ok(()),
        }
    }

    /// Appends the names of the fields that nobody has read, for an object inside of a request whose reading ends.
    pub fn end(self, unknown: &mut Vec<String>) {
        unknown.extend(self.unknown());
    }

    /// Names of the fields that nobody has read, sorted.
    pub fn unknown(&self) -> Vec<String> {
        let mut names: Vec<_> = self.map.keys().map(|field| self.name(field)).collect();
        names.sort_unstable();
        names
    }
}

pub const TOKENS: RangeInclusive<u64> = 0..=u32::MAX as u64;

/// A value that must be a list of token ids.
pub fn tokens(name: &str, value: Value) -> Result<Vec<u32>> {
    let list = match value {
        Value::Array(list) => list,
        other => return Err(wrong_type(name.to_owned(), "a list", &other)),
    };
    let id = |(index, value)| integer(format!("{name}[{index}]"), value, &TOKENS);
    list.iter()
        .enumerate()
        .map(|item| id(item).map(|id| id as u32))
        .collect()
}

pub fn wrong_type(name: String, wanted: &str, value: &Value) -> ApiError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let message = format!("{name} must be {wanted}, not {found}");
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_type", message).with_param(name)
}

fn integer(name: String, value: &Value, range: &RangeInclusive<u64>) -> Result<u64> {
    match value.as_u64() {
        Some(number) if range.contains(&number) => Ok(number),
        None if !value.is_number() => Err(wrong_type(name, "an integer", value)),
        _ => {
            let message = format!(
                "{name} must be an integer from {} to {}, not {value}",
                range.start(),
                range.end()
            );
            Err(ApiError::invalid(name, message))
        }
    }
}

pub fn in_range(
    name: String,
    number: f64,
    value: &Value,
    range: &RangeInclusive<f64>,
) -> Result<()> {
    if range.contains(&number) {
        return Ok(());
    }
    let (low, high) = (range.start(), range.end());
    let message = format!("{name} must be from {low} to {high}, not {value}");
    Err(ApiError::invalid(name, message))
}

#[cfg(test)]
mod tests {
    use super::parsed_bytes;

    #[test]
    fn lists_and_objects_need_more_than_their_text() {
        let strings = [r"[[[,,,:::{{{", r#"\"[,:{\\\"[,"#, "xxxxxxxxxxxx"];
        let [text, ..] = strings.map(|text| {
            assert_eq!(text.len(), 12);
            let bytes = parsed_bytes(format!("{{\"a\":\"{text}\"}}").as_bytes());
            assert_eq!(bytes, parsed_bytes(br#"{"a":"xxxxxxxxxxxx"}"#), "{text}");
            bytes
        });
        assert!(text > 11 * (32 + 24), "{text}");
        let list = format!("[{}0]", "0,".repeat(1 << 20));
        assert!(parsed_bytes(list.as_bytes()) > 64 << 20);
    }
}
