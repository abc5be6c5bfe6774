//! The grammar of tool calls, in the form that a model's chat template has for them.

use serde_json::Value;
use worker_cuda::generate::constraints::Rule;
use worker_cuda::text::Tokenizer;

use super::split::Format;
use super::tools::tool_name;

/// Most calls of one answer, where it must have calls.
const MAX_CALLS: usize = 16;

/// What calls are written for.
pub struct Calls<'a> {
    pub format: Format,
    /// Whether the name stands in front of the arguments: `name[ARGS]{…}`.
    pub names_first: bool,
    pub tokenizer: &'a Tokenizer,
    pub tools: &'a [Value],
    /// Whether there is one call only.
    pub single: bool,
}

impl Calls<'_> {
    /// An answer that is calls. With `schema`, it may also be JSON of that schema.
    pub fn whole_answer(&self, schema: Option<&Value>) -> Rule {
        let marker = self.marker();
        let all = match self.format {
            Format::Hermes => self.list(&format!("{marker} S? call S? \"</tool_call>\""), "S?"),
            Format::Mistral if self.names_first => self.list(&format!("{marker} call"), ""),
            Format::Mistral => format!(
                "{marker} S? \"[\" S? {} S? \"]\"",
                self.list("call", "S? \",\" S?")
            ),
            Format::Llama3 => self.list("call", "S? \";\" S?"),
            Format::Json => "call".to_owned(),
        };
        match schema {
            None => self.grammar(&all, ""),
            Some(schema) => self.grammar(
                &format!("answer | {all}"),
                &format!("answer: %json {schema}\n"),
            ),
        }
    }

    /// What follows a marker.
    pub fn after_marker(&self) -> Rule {
        let rest = match self.format {
            Format::Hermes => "S? call S? \"</tool_call>\"".to_owned(),
            Format::Mistral if self.names_first => "call".to_owned(),
            Format::Mistral => format!("S? \"[\" S? {} S? \"]\"", self.list("call", "S? \",\" S?")),
            Format::Llama3 | Format::Json => "S? call".to_owned(),
        };
        self.grammar(&rest, "")
    }

    /// One or more, with something between them.
    fn list(&self, item: &str, between: &str) -> String {
        match self.single {
            true => item.to_owned(),
            false => format!("{item} ({between} {item}){{0,{}}}", MAX_CALLS - 1),
        }
    }

    fn grammar(&self, start: &str, rules: &str) -> Rule {
        let mut text = format!("start: {start}\n{rules}S: /[ \\n\\r\\t]{{1,20}}/\n");
        let key = match self.format {
            Format::Llama3 => "parameters",
            _ => "arguments",
        };
        let mut calls = Vec::new();
        for (index, tool) in self.tools.iter().enumerate() {
            let schema = &tool["function"]["parameters"];
            text += &format!("arguments{index}: %json {schema}\n");
            let name = Value::from(tool_name(tool)).to_string();
            calls.push(match self.names_first {
                true => format!(
                    "{} {} S? arguments{index}",
                    literal(tool_name(tool)),
                    self.special("[ARGS]")
                ),
                false => format!(
                    "{} S? \",\" S? {} S? \":\" S? arguments{index}",
                    literal(&name),
                    literal(&format!("\"{key}\""))
                ),
            });
        }
        let calls = calls.join(" | ");
        text += &match self.names_first {
            true => format!("call: {calls}\n"),
            false => format!(
                "call: \"{{\" S? {} S? \":\" S? ({calls}) S? \"}}\"\n",
                literal("\"name\"")
            ),
        };
        Rule::Lark(text)
    }

    fn marker(&self) -> String {
        self.format
            .marker()
            .map_or_else(String::new, |marker| self.special(marker))
    }

    /// A text that may be a control token.
    fn special(&self, text: &str) -> String {
        let token = self.tokenizer.token_id(text);
        match token.filter(|&token| self.tokenizer.is_special(token)) {
            Some(token) => format!("<[{token}]>"),
            None => literal(text),
        }
    }
}

/// A text as Lark writes it, which is as JSON does.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
