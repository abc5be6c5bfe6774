//! The chat that a request of another API becomes.

use serde_json::{Map, Value, json};

use super::completions::Conversation;
use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::names::Names;

#[derive(Default)]
pub struct Chat {
    pub fields: Map<String, Value>,
    pub messages: Vec<Value>,
    /// By the client's names.
    pub unknown: Vec<String>,
    pub names: Names,
}

/// How an API describes the tools that the client runs.
pub struct ToolShape {
    /// Whether tools of this type are run by the client. The others are those of the API's own servers, which are not here.
    pub is_function: fn(Option<&str>) -> bool,
    /// The field with the schema of the arguments.
    pub parameters: &'static str,
    pub ignored: &'static [&'static str],
}

impl Chat {
    pub fn new(names: &[(&str, &str)]) -> Self {
        Self {
            names: Names::new(names),
            ..Self::default()
        }
    }

    /// Takes the fields that mean the same in a chat.
    pub fn take(&mut self, fields: &mut Fields, names: &[&str]) {
        for &name in names {
            if let Some(value) = fields.take(name) {
                self.fields.insert(name.into(), value);
            }
        }
    }

    /// Appends a message, which is what has this name in the client's request.
    pub fn push(&mut self, original: &str, message: Value) {
        self.names.add(self.next_message(), original);
        self.messages.push(message);
    }

    /// The name of the next message.
    pub fn next_message(&self) -> String {
        format!("messages[{}]", self.messages.len())
    }

    pub fn tools(&mut self, tools: Value, shape: &ToolShape) -> Result<(), ApiError> {
        let Value::Array(list) = tools else {
            return Err(wrong_type("tools".into(), "a list", &tools));
        };
        let mut found: Vec<Value> = Vec::new();
        for (index, tool) in list.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            let mut tool = Fields::object(path.clone(), tool)?;
            if !(shape.is_function)(tool.string("type")?.as_deref()) {
                self.unknown.push(tool.name("type"));
                continue;
            }
            let function = json!({
                "name": tool.take("name"),
                "description": tool.take("description"),
                "parameters": tool.take(shape.parameters),
            });
            tool.skip(shape.ignored);
            tool.end(&mut self.unknown);
            let name = format!("tools[{}]", found.len());
            let parameters = format!("{path}.{}", shape.parameters);
            self.names
                .add(format!("{name}.function.parameters"), parameters);
            self.names.add(format!("{name}.function"), path.as_str());
            self.names.add(name, path);
            found.push(json!({ "type": "function", "function": function }));
        }
        self.fields.insert("tools".into(), found.into());
        Ok(())
    }

    pub fn into_conversation(mut self) -> Conversation {
        self.fields.insert("messages".into(), self.messages.into());
        Conversation {
            fields: Fields::from_map(self.fields),
            unknown: self.unknown,
            names: self.names,
        }
    }
}
