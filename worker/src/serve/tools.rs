//! Tools: what a request offers and demands, and calls in the history of a conversation.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::split::MAX_NAME_BYTES;

type Result<T> = std::result::Result<T, ApiError>;

const MAX_TOOLS: usize = 128;

/// Whether tools are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Never.
    #[default]
    None,
    /// Where the model wants.
    Auto,
    /// In any case.
    Required,
}

/// The tools of a request that may be called.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    pub choice: Choice,
    /// Whether an answer has one call at most.
    pub single: bool,
    /// As the chat template gets them: `{"type":"function","function":{…}}`.
    pub list: Vec<Value>,
}

impl Tools {
    /// Reads `tools` and `tool_choice`.
    pub fn read(fields: &mut Fields, unknown: &mut Vec<String>) -> Result<Self> {
        let list = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong_type(fields.name("tools"), "a list", &other)),
        };
        if list.len() > MAX_TOOLS {
            let message = format!("tools has {} tools, at most {MAX_TOOLS}", list.len());
            return Err(ApiError::invalid("tools", message));
        }
        let list = list.into_iter().enumerate();
        let list: Vec<Value> = list
            .map(|(index, value)| definition(format!("tools[{index}]"), value, unknown))
            .collect::<Result<_>>()?;
        let single = match fields.take("parallel_tool_calls") {
            None => false,
            Some(Value::Bool(parallel)) => !parallel,
            Some(other) => {
                let name = fields.name("parallel_tool_calls");
                return Err(wrong_type(name, "true or false", &other));
            }
        };
        let mut tools = Self {
            choice: if list.is_empty() {
                Choice::None
            } else {
                Choice::Auto
            },
            single,
            list,
        };
        if let Some(choice) = fields.take("tool_choice") {
            tools.choose(choice, unknown)?;
        }
        if tools.choice == Choice::None {
            tools.list.clear();
        }
        Ok(tools)
    }

    fn choose(&mut self, choice: Value, unknown: &mut Vec<String>) -> Result<()> {
        let word = match choice {
            Value::String(word) => word,
            Value::Object(_) => return self.choose_named(choice, unknown),
            other => {
                let wanted = "a string or an object";
                return Err(wrong_type("tool_choice".into(), wanted, &other));
            }
        };
        self.choice = match word.as_str() {
            "none" => Choice::None,
            "auto" if self.list.is_empty() => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => {
                let message = format!("tool_choice must be none, auto or required, not {word:?}");
                return Err(ApiError::invalid("tool_choice", message));
            }
        };
        self.check_not_empty()
    }

    /// `{"type":"function","function":{"name"}}` or
    /// `{"type":"allowed_tools","allowed_tools":{"mode","tools":[…]}}`; in the Responses API without the object around
    /// the last fields.
    fn choose_named(&mut self, choice: Value, unknown: &mut Vec<String>) -> Result<()> {
        let mut choice = Fields::object("tool_choice".into(), choice)?;
        let names = match choice.string("type")?.as_deref() {
            Some("function") => {
                (self.choice, self.single) = (Choice::Required, true);
                vec![named(choice, unknown)?]
            }
            Some("allowed_tools") => match choice.take_object("allowed_tools")? {
                Some(allowed) => {
                    choice.end(unknown);
                    self.allowed(allowed, unknown)?
                }
                None => self.allowed(choice, unknown)?,
            },
            _ => {
                let message = "tool_choice.type must be function or allowed_tools";
                return Err(ApiError::invalid("tool_choice.type", message));
            }
        };
        for name in &names {
            if !self.list.iter().any(|tool| tool_name(tool) == name) {
                let message = format!("tool_choice names '{name}', which is not one of tools");
                return Err(ApiError::invalid("tool_choice", message));
            }
        }
        self.list
            .retain(|tool| names.iter().any(|name| name == tool_name(tool)));
        self.check_not_empty()
    }

    /// `{"mode","tools":[…]}`. Returns the names of the functions.
    fn allowed(&mut self, mut allowed: Fields, unknown: &mut Vec<String>) -> Result<Vec<String>> {
        self.choice = match allowed.string("mode")?.as_deref() {
            None | Some("auto") => Choice::Auto,
            Some("required") => Choice::Required,
            Some(other) => {
                let name = allowed.name("mode");
                let message = format!("{name} must be auto or required, not {other:?}");
                return Err(ApiError::invalid(name, message));
            }
        };
        let place = allowed.name("tools");
        let list = match allowed.required("tools")? {
            Value::Array(list) => list,
            other => return Err(wrong_type(place, "a list", &other)),
        };
        allowed.end(unknown);
        let mut names = Vec::new();
        for (index, tool) in list.into_iter().enumerate() {
            let mut tool = Fields::object(format!("{place}[{index}]"), tool)?;
            match tool.string("type")?.as_deref() {
                None | Some("function") => names.push(named(tool, unknown)?),
                // One of OpenAI's own servers, which is not here.
                Some(_) => unknown.push(tool.name("type")),
            }
        }
        Ok(names)
    }

    fn check_not_empty(&self) -> Result<()> {
        if self.list.is_empty() && self.choice != Choice::None {
            let message = "tool_choice requires tools";
            return Err(ApiError::invalid("tool_choice", message));
        }
        Ok(())
    }
}

pub fn tool_name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// `function.name` of a choice, or the plain `name` that the Responses API has.
fn named(mut choice: Fields, unknown: &mut Vec<String>) -> Result<String> {
    let place = choice.name("function.name");
    let mut function = match choice.take_object("function")? {
        Some(function) => {
            choice.end(unknown);
            function
        }
        None => choice,
    };
    let name = function
        .string("name")?
        .ok_or_else(|| ApiError::invalid(place.clone(), format!("{place} is required")))?;
    function.end(unknown);
    Ok(name)
}

fn definition(path: String, value: Value, unknown: &mut Vec<String>) -> Result<Value> {
    let mut tool = Fields::object(path, value)?;
    match tool.string("type")?.as_deref() {
        None | Some("function") => {}
        Some(other) => {
            let message = format!("tools of the type '{other}' are not supported by this server");
            return Err(ApiError::unsupported(tool.name("type"), message));
        }
    }
    let path = tool.name("function");
    let mut function = Fields::object(path, tool.required("function")?)?;
    let place = function.name("name");
    let name = function.string("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
        let message =
            format!("{place} must have 1 to {MAX_NAME_BYTES} letters, digits, '_', '-' or '.'");
        return Err(ApiError::invalid(place, message));
    }
    let mut definition = Map::new();
    definition.insert("name".into(), name.into());
    let description = function.string("description")?.unwrap_or_default();
    definition.insert("description".into(), description.into());
    let parameters = match function.take_object("parameters")? {
        Some(parameters) => Value::Object(parameters.into_map()),
        None => json!({ "type": "object", "properties": {} }),
    };
    definition.insert("parameters".into(), parameters);
    function.skip(&["strict", "cache_control"]);
    function.end(unknown);
    tool.skip(&["cache_control"]);
    tool.end(unknown);
    Ok(json!({ "type": "function", "function": definition }))
}

/// Calls that messages have made, by which answers of tools are checked.
#[derive(Debug, Default)]
pub struct History(Vec<(String, String)>);

impl History {
    /// `tool_calls` of an assistant's message, as templates read them: the arguments are an object.
    pub fn calls(
        &mut self,
        fields: &mut Fields,
        unknown: &mut Vec<String>,
    ) -> Result<Option<Value>> {
        let name = fields.name("tool_calls");
        let list = match fields.take("tool_calls") {
            None => return Ok(None),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong_type(name, "a list", &other)),
        };
        let calls = list.into_iter().enumerate();
        let calls: Vec<Value> = calls
            .map(|(index, value)| self.call(format!("{name}[{index}]"), value, unknown))
            .collect::<Result<_>>()?;
        Ok((!calls.is_empty()).then(|| calls.into()))
    }

    fn call(&mut self, path: String, value: Value, unknown: &mut Vec<String>) -> Result<Value> {
        let mut call = Fields::object(path, value)?;
        call.only("type", &[json!("function")])?;
        let id = call.string("id")?.unwrap_or_default();
        let path = call.name("function");
        let mut function = Fields::object(path, call.required("function")?)?;
        let place = function.name("name");
        let name = function
            .string("name")?
            .filter(|name| !name.is_empty())
            .ok_or_else(|| ApiError::invalid(place.clone(), format!("{place} is required")))?;
        let place = function.name("arguments");
        let arguments = match function.take("arguments") {
            None => json!({}),
            Some(Value::String(text)) if text.trim().is_empty() => json!({}),
            Some(Value::String(text)) => serde_json::from_str(&text).map_err(|error| {
                ApiError::invalid(place.clone(), format!("{place} is not JSON: {error}"))
            })?,
            Some(other) => other,
        };
        if !arguments.is_object() {
            return Err(wrong_type(
                place,
                "an object, written as a string",
                &arguments,
            ));
        }
        function.end(unknown);
        call.skip(&["index"]);
        call.end(unknown);
        self.0.push((id.clone(), name.clone()));
        Ok(json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }))
    }

    /// The answer of a tool: its call must have been made. Returns id and name.
    pub fn answered(&self, fields: &mut Fields) -> Result<(String, String)> {
        let place = fields.name("tool_call_id");
        let id = fields.required("tool_call_id")?;
        let Value::String(id) = id else {
            return Err(wrong_type(place, "a string", &id));
        };
        let call = self.0.iter().rev().find(|(known, _)| *known == id);
        match call {
            Some((_, name)) => Ok((id, name.clone())),
            None => {
                let message = format!("{place}: no message before it has a tool call '{id}'");
                Err(ApiError::invalid(place, message))
            }
        }
    }
}

/// Describes the tools to a model whose template has no place for them.
pub fn instructions(tools: &[Value]) -> String {
    let mut text = "You can call functions. To call one, answer with nothing but a JSON object: \
                    {\"name\": NAME, \"arguments\": OBJECT}. The functions:"
        .to_owned();
    for tool in tools {
        text += &format!("\n{}", tool["function"]);
    }
    text
}

/// Rewrites messages for such a template: calls and results become text, and the instructions the first message.
pub fn as_text(messages: &mut Vec<Value>, tools: &[Value]) {
    for message in messages.iter_mut() {
        if let Some(Value::Array(calls)) =
            message.as_object_mut().and_then(|m| m.remove("tool_calls"))
        {
            let calls = calls.iter().map(|call| call["function"].to_string());
            let calls = calls.collect::<Vec<_>>().join("\n");
            let content = message["content"].as_str().unwrap_or_default();
            let separator = if content.is_empty() { "" } else { "\n" };
            message["content"] = format!("{content}{separator}{calls}").into();
        }
        if message["role"] == "tool" {
            let (name, content) = (&message["name"], &message["content"]);
            let text = format!(
                "Result of {}: {}",
                name.as_str().unwrap_or_default(),
                content.as_str().unwrap_or_default()
            );
            *message = json!({ "role": "user", "content": text });
        }
    }
    if tools.is_empty() {
        return;
    }
    let instructions = instructions(tools);
    match messages
        .first_mut()
        .filter(|first| first["role"] == "system")
    {
        Some(first) => {
            let content = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{content}\n\n{instructions}").into();
        }
        None => messages.insert(0, json!({ "role": "system", "content": instructions })),
    }
}
