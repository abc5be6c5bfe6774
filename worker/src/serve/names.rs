//! The names that the fields of a request have for its client, where the request is read as one of another path.

use std::collections::HashMap;

use super::error::ApiError;

/// Names in the request as it is read, with those in the client's. The name of an object or a list also stands for
/// everything in it.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    pub fn new(names: &[(&str, &str)]) -> Self {
        let mut map = Self::default();
        for (name, original) in names {
            map.add(*name, *original);
        }
        map
    }

    pub fn add(&mut self, name: impl Into<String>, original: impl Into<String>) {
        self.0.insert(name.into(), original.into());
    }

    /// Errors about the number of tokens to generate name the field that the client has sent.
    pub fn add_max_tokens(&mut self, has_newer_name: bool) {
        if !has_newer_name {
            self.add("max_completion_tokens", "max_tokens");
        }
    }

    /// The client's name.
    pub fn original(&self, name: &str) -> String {
        let mut end = name.len();
        loop {
            let (known, rest) = name.split_at(end);
            if let Some(original) = self.0.get(known) {
                return format!("{original}{rest}");
            }
            match known.rfind(['.', '[']) {
                Some(at) => end = at,
                None => return name.to_owned(),
            }
        }
    }

    /// An error that names the client's field.
    pub fn restore(&self, error: ApiError) -> ApiError {
        match error.param().map(|name| self.original(name)) {
            Some(name) => error.renamed(name),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_known_part_of_a_name_is_replaced() {
        let names = Names::new(&[
            ("messages", "input"),
            ("messages[1]", "input[3]"),
            ("messages[1].tool_call_id", "input[3].call_id"),
        ]);
        for (name, original) in [
            ("messages", "input"),
            ("messages[1]", "input[3]"),
            ("messages[1].content[0].text", "input[3].content[0].text"),
            ("messages[1].tool_call_id", "input[3].call_id"),
            ("messages[10].role", "input[10].role"),
            ("messages_of_others", "messages_of_others"),
            ("tools[0].messages", "tools[0].messages"),
        ] {
            assert_eq!(names.original(name), original);
        }
    }

    #[test]
    fn messages_of_errors_name_the_same_field() {
        let names = Names::new(&[("stop", "stop_sequences")]);
        let error = names.restore(ApiError::invalid("stop", "stop has a stop too many"));
        assert_eq!(error.param(), Some("stop_sequences"));
        assert_eq!(error.message(), "stop_sequences has a stop too many");
        let error = names.restore(ApiError::invalid("stop", "a text without its name"));
        assert_eq!(error.message(), "a text without its name");
    }
}
