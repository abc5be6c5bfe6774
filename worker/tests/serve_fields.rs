//! `serve`: fields inside of a request: unknown ones are named by their path, and so are wrong ones, by the names that
//! the client has sent.

use serde_json::{Value, json};

use http::Served;

#[path = "support/http.rs"]
mod http;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Has tools.
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | length }}</tools>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";

fn served(strict: bool) -> Served {
    Served::with(|setup| {
        setup.template = TEMPLATE;
        setup.options.strict = strict;
    })
}

/// Objects whose fields the server does not read.
const FREE: [&str; 10] = [
    "annotations",
    "arguments",
    "cache_control",
    "chat_template_kwargs",
    "citations",
    "input_schema",
    "logit_bias",
    "metadata",
    "parameters",
    "schema",
];

/// The objects in a value that the server reads: pointers, and names of a field `zz` in them.
fn objects(value: &Value, pointer: &str, name: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            found.push((pointer.to_owned(), format!("{name}zz")));
            for (key, value) in map {
                let is_call = key == "input" && map.contains_key("name");
                if !is_call && !FREE.contains(&key.as_str()) {
                    let list = value.is_array();
                    let dot = if list { "" } else { "." };
                    let name = format!("{name}{key}{dot}");
                    objects(value, &format!("{pointer}/{key}"), &name, found);
                }
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                let name = format!("{name}[{index}].");
                objects(value, &format!("{pointer}/{index}"), &name, found);
            }
        }
        _ => {}
    }
}

fn body(fields: &[&Value]) -> Value {
    let mut body = json!({ "model": "scripted" });
    for fields in fields {
        for (name, value) in fields.as_object().expect("an object") {
            body[name] = value.clone();
        }
    }
    body
}

/// Bodies that have each object of the APIs, with all fields that are known or have no effect.
fn bodies() -> Vec<(&'static str, Value)> {
    let cached = json!({ "type": "ephemeral" });
    let schema = json!({ "type": "object", "properties": {} });
    let function = json!({
        "name": "f", "description": "d", "parameters": schema, "strict": true, "cache_control": cached,
    });
    let tools = json!([{ "type": "function", "function": function, "cache_control": cached }]);
    let short = json!({ "max_tokens": 3 });
    let chat = json!({
        "messages": [
            { "role": "system", "content": "be terse", "cache_control": cached },
            { "role": "user", "name": "me", "content": [
                { "type": "text", "text": "call", "cache_control": cached },
            ] },
            { "role": "assistant", "content": null, "refusal": null, "annotations": [],
              "reasoning_content": "why", "tool_calls": [{
                "id": "c", "type": "function", "index": 0, "function": { "name": "f", "arguments": "{}" },
            }] },
            { "role": "tool", "tool_call_id": "c", "content": "done" },
            { "role": "user", "content": "say hi" },
        ],
    });
    let say = json!({ "messages": [{ "role": "user", "content": "say hi" }] });
    let with_tools = json!({ "tools": tools });
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let allowed = json!({ "mode": "required", "tools": [named] });
    let grammar = json!({ "type": "grammar", "syntax": "regex", "definition": "[a-z]*" });
    let schema_format = json!({
        "type": "json_schema", "name": "n", "description": "d", "strict": true, "schema": schema,
    });
    let mut list = Vec::new();
    for more in [
        body(&[&chat, &with_tools]),
        body(&[
            &say,
            &json!({ "stream": true, "stream_options": {
                "include_usage": true, "include_obfuscation": false,
            } }),
        ]),
        body(&[
            &say,
            &json!({ "response_format": { "type": "json_schema", "json_schema": {
            "name": "n", "description": "d", "strict": true, "schema": schema,
        } } }),
        ]),
        body(&[&say, &json!({ "response_format": grammar })]),
        body(&[
            &say,
            &json!({ "response_format": { "type": "json_object" } }),
        ]),
        body(&[
            &say,
            &json!({ "prediction": { "type": "content", "content": [
            { "type": "text", "text": "hi" },
        ] } }),
        ]),
        body(&[&say, &with_tools, &json!({ "tool_choice": named })]),
        body(&[
            &say,
            &with_tools,
            &json!({ "tool_choice": {
            "type": "allowed_tools", "allowed_tools": allowed,
        } }),
        ]),
    ] {
        list.push((CHAT, body(&[&more, &short])));
    }
    list.push((
        "/v1/completions",
        body(&[&json!({ "prompt": "say hi", "response_format": grammar })]),
    ));

    let part = |kind: &str| json!({ "type": kind, "text": "t", "annotations": [], "logprobs": [] });
    let short = json!({ "max_output_tokens": 3, "tools": [
        { "type": "function", "name": "f", "description": "d", "parameters": schema, "strict": true },
    ] });
    for more in [
        json!({
            "input": [
                { "type": "message", "id": "m", "status": "completed", "role": "user",
                  "content": [part("input_text")] },
                { "type": "reasoning", "id": "r", "status": "completed", "summary": [],
                  "encrypted_content": "x" },
                { "type": "message", "id": "m", "status": "completed", "role": "assistant",
                  "phase": "commentary", "content": [part("output_text")] },
                { "type": "function_call", "id": "f", "status": "completed", "call_id": "c",
                  "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "id": "o", "status": "completed", "call_id": "c",
                  "output": [part("input_text")] },
            ],
            "text": { "verbosity": "low", "format": schema_format },
            "reasoning": { "effort": "low", "summary": "auto" },
            "stream_options": { "include_obfuscation": false },
        }),
        json!({ "input": "say hi", "tool_choice": { "type": "function", "name": "f" } }),
        json!({ "input": "say hi", "tool_choice": {
            "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "f" }],
        } }),
    ] {
        list.push((RESPONSES, body(&[&more, &short])));
    }

    let text = json!({ "type": "text", "text": "t", "cache_control": cached, "citations": null });
    let short = json!({ "max_tokens": 3, "tools": [{
        "name": "f", "description": "d", "input_schema": schema, "cache_control": cached,
        "strict": true, "eager_input_streaming": true,
    }] });
    for more in [
        json!({
            "system": [text],
            "messages": [
                { "role": "user", "content": [text] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "why", "signature": "" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "tool_use", "id": "t", "name": "f", "input": {}, "cache_control": cached,
                      "caller": null },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t", "is_error": false,
                      "cache_control": cached, "content": [text_of_chat()] },
                ] },
            ],
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": schema } },
        }),
        json!({ "messages": [{ "role": "user", "content": "say hi" }],
                "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }),
        json!({ "messages": [{ "role": "user", "content": "say hi" }],
                "tool_choice": { "type": "tool", "name": "f" } }),
    ] {
        let body = body(&[&more, &short]);
        list.push((MESSAGES, body.clone()));
        list.push(("/v1/messages/count_tokens", body));
    }
    list
}

fn text_of_chat() -> Value {
    json!({ "type": "text", "text": "done", "cache_control": { "type": "ephemeral" } })
}

#[test]
fn unknown_fields_are_named_wherever_they_are() {
    let [lenient, strict] = [false, true].map(served);
    let mut count = 0;
    for (path, body) in bodies() {
        let known = strict.post(path, &body);
        assert_eq!(known.status, 200, "{body}: {}", known.body);
        assert_eq!(known.headers.get("x-worker-ignored"), None);
        let mut found = Vec::new();
        objects(&body, "", "", &mut found);
        for (pointer, name) in found {
            let mut body = body.clone();
            body.pointer_mut(&pointer).expect("an object")["zz"] = json!({ "a": 1 });
            let reply = lenient.post(path, &body);
            assert_eq!(reply.status, 200, "{name}: {}", reply.body);
            let ignored = reply.headers.get("x-worker-ignored");
            assert_eq!(ignored, Some(&name), "{path} {body}");
            let reply = strict.post(path, &body);
            assert_eq!(reply.status, 400, "{name}: {}", reply.body);
            let message = reply.json()["error"]["message"].clone();
            assert_eq!(message, format!("unknown fields: {name}"));
            count += 1;
        }
    }
    assert!(count > 70, "{count} objects");
}

#[test]
fn errors_name_the_fields_that_were_sent() {
    let served = served(false);
    let say = json!({ "messages": [{ "role": "user", "content": "say hi" }], "max_tokens": 5 });
    let items = |items: Value| json!({ "input": items });
    let call = |name: Value, arguments: &str| json!({ "type": "function_call", "call_id": "c", "name": name, "arguments": arguments });
    let user = json!({ "role": "user", "content": "x" });
    for (more, param) in [
        (json!({ "max_output_tokens": "x" }), "max_output_tokens"),
        (
            items(json!([{ "role": "zz", "content": "x" }])),
            "input[0].role",
        ),
        (
            items(json!([user, { "type": "reasoning" }, { "role": "user", "content": 5 }])),
            "input[2].content",
        ),
        (
            items(json!([user, { "role": "user", "content": [{ "type": "input_image" }] }])),
            "input[1].content[0].type",
        ),
        (items(json!([])), "input"),
        (
            items(json!([user, call(json!("f"), "{}"), call(json!(""), "{}")])),
            "input[2].name",
        ),
        (
            items(json!([user, call(json!("f"), "{")])),
            "input[1].arguments",
        ),
        (
            items(json!([{ "type": "function_call_output", "call_id": "no", "output": "x" }])),
            "input[0].call_id",
        ),
        (
            json!({ "text": { "format": { "type": "x" } } }),
            "text.format.type",
        ),
        (
            json!({ "text": { "format": { "type": "json_schema" } } }),
            "text.format.schema",
        ),
        (
            json!({ "text": { "format": { "type": "json_schema", "schema": { "type": 1 } } } }),
            "text.format",
        ),
        (json!({ "reasoning": { "effort": 1 } }), "reasoning.effort"),
        (
            json!({ "tools": [{ "type": "web_search" }, { "type": "function", "name": "a b" }] }),
            "tools[1].name",
        ),
        (
            json!({ "tools": [{ "type": "function", "name": "f", "parameters": 1 }] }),
            "tools[0].parameters",
        ),
        (
            json!({ "tools": [{ "type": "function", "name": "f" }],
                 "tool_choice": { "type": "function" } }),
            "tool_choice.name",
        ),
        (
            json!({ "tools": [{ "type": "function", "name": "f" }],
                 "tool_choice": { "type": "allowed_tools", "mode": "x", "tools": [] } }),
            "tool_choice.mode",
        ),
        (
            json!({ "parallel_tool_calls": "no" }),
            "parallel_tool_calls",
        ),
    ] {
        let reply = served.post(RESPONSES, &body(&[&json!({ "input": "say hi" }), &more]));
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], param, "{more}: {error}");
        let message = error["message"].as_str().expect("a text");
        for name in [
            "messages",
            "max_completion_tokens",
            "response_format",
            "tool_call_id",
        ] {
            assert!(!message.contains(name), "{message}");
        }
    }
    let image = json!({ "type": "image" });
    for (more, name) in [
        (
            json!({ "messages": [user, { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "no" },
        ] }] }),
            "messages[1].content[0].tool_use_id: ",
        ),
        (
            json!({ "messages": [user, { "role": "user", "content": 5 }] }),
            "messages[1].content must",
        ),
        (
            json!({ "system": "x", "messages": [{ "role": "user", "content": 5 }] }),
            "messages[0].content must",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "content": [
            { "type": "text", "text": "x" },
            { "type": "tool_use", "id": "t", "name": "f", "input": [] },
        ] }] }),
            "messages[0].content[1].input must",
        ),
        (json!({ "stop_sequences": [1] }), "stop_sequences must"),
        (json!({ "stop_sequences": [""] }), "stop_sequences has"),
        (
            json!({ "output_config": { "effort": 5 } }),
            "output_config.effort must",
        ),
        (
            json!({ "output_config": { "format": { "type": "x" } } }),
            "output_config.format.type must",
        ),
        (
            json!({ "tools": [{ "type": "web_search_1" }, { "name": "f", "input_schema": 5 }] }),
            "tools[1].input_schema must",
        ),
        (
            json!({ "tools": [{ "name": "a b" }] }),
            "tools[0].name must",
        ),
        (
            json!({ "tools": [{ "name": "f" }], "tool_choice": { "type": "tool", "name": 5 } }),
            "tool_choice.name must",
        ),
        (
            json!({ "system": [{ "type": "text", "text": "x" }, image] }),
            "content of the type",
        ),
    ] {
        let reply = served.post(MESSAGES, &body(&[&say, &more]));
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        let message = reply.json()["error"]["message"].clone();
        assert!(
            message.as_str().is_some_and(|text| text.starts_with(name)),
            "{message}"
        );
    }
    for (path, more, param, part) in [
        (
            CHAT,
            json!({ "parallel_tool_calls": "no" }),
            "parallel_tool_calls",
            "true or false",
        ),
        (
            CHAT,
            json!({ "stop_token_ids": [999_999] }),
            "stop_token_ids",
            "stop_token_ids: token",
        ),
        (
            CHAT,
            json!({ "logit_bias": { "5": 1, "05": 1 } }),
            "logit_bias",
            "logit_bias: token 5 is repeated",
        ),
        (
            CHAT,
            json!({ "min_tokens": 9 }),
            "min_tokens",
            "min_tokens: ",
        ),
        (
            "/v1/completions",
            json!({ "prompt": [] }),
            "prompt",
            "prompt: ",
        ),
        (
            "/v1/completions",
            json!({ "prompt": [999_999] }),
            "prompt",
            "prompt: token",
        ),
        (
            "/tokenize",
            json!({ "messages": [] }),
            "messages",
            "messages is empty",
        ),
    ] {
        let of_chat = match path {
            CHAT => say.clone(),
            _ => json!({}),
        };
        let reply = served.post(path, &body(&[&of_chat, &more]));
        let found = reply.json()["error"]["param"].clone();
        assert_eq!((reply.status, found), (400, json!(param)), "{}", reply.body);
        let message = reply.json()["error"]["message"].clone();
        assert!(
            message.as_str().is_some_and(|text| text.contains(part)),
            "{message}"
        );
    }
}
