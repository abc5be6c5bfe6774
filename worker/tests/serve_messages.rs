//! `serve`: Anthropic's API over real sockets, of a scripted engine.

use serde_json::{Value, json};

use http::{Reply, Served};

#[path = "support/http.rs"]
mod http;

const PATH: &str = "/v1/messages";

/// Writes tools and calls as Hermes' templates do.
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | length }}</tools>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.reasoning_content or '' }}{{ m.content }}\
    {% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %};\
    {% endfor %}assistant:";

fn served() -> Served {
    Served::with(|setup| setup.template = TEMPLATE)
}

fn message(words: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "scripted",
        "max_tokens": 100,
        "messages": [{ "role": "user", "content": format!("say {words}") }],
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The events of a stream: names and data, which must agree.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut events = Vec::new();
    for event in reply
        .body
        .split_terminator("\n\n")
        .filter(|event| *event != ":")
    {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        events.push(data);
    }
    events
}

/// The message that a stream describes, as it would be whole.
fn joined(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut partial = String::new();
    let mut content: Vec<Value> = Vec::new();
    let (mut is_open, mut is_over) = (false, false);
    for event in &events[1..] {
        assert!(!is_over, "{event} after the end");
        let delta = &event["delta"];
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert!(!is_open && event["index"] == content.len());
                content.push(event["content_block"].clone());
                (is_open, partial) = (true, String::new());
            }
            "content_block_delta" => {
                assert!(is_open && event["index"] == content.len() - 1);
                let block = content.last_mut().expect("a block");
                for name in ["text", "thinking"] {
                    if let Some(text) = delta[name].as_str() {
                        block[name] =
                            format!("{}{text}", block[name].as_str().expect("text")).into();
                    }
                }
                partial += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" => {
                assert!(is_open && event["index"] == content.len() - 1);
                is_open = false;
                if !partial.is_empty() {
                    content.last_mut().expect("a block")["input"] =
                        serde_json::from_str(&partial).expect("JSON");
                }
            }
            "message_delta" => {
                message["stop_reason"] = delta["stop_reason"].clone();
                message["stop_sequence"] = delta["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => is_over = true,
            other => panic!("{other}"),
        }
    }
    assert!(is_over && !is_open);
    message["content"] = content.into();
    message
}

/// A message without its ids.
fn plain(mut message: Value) -> Value {
    assert!(
        message["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("msg_"))
    );
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().expect("a list") {
        if let Some(id) = block.get_mut("id") {
            assert!(id.as_str().is_some_and(|id| id.starts_with("toolu_")));
            *id = Value::Null;
        }
    }
    message
}

#[test]
fn messages_are_answered_whole_and_streamed() {
    let served = served();
    let call = r#"<tool_call>{"name":"now","arguments":{"a":1}}</tool_call>"#;
    let tools = json!([{ "name": "now", "input_schema": { "type": "object" } }]);
    let use_block = json!({ "type": "tool_use", "id": null, "name": "now", "input": { "a": 1 } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (words, more, content, reason, sequence) in [
        (
            "hello".to_owned(),
            json!({}),
            json!([text("hello")]),
            "end_turn",
            Value::Null,
        ),
        (
            "hello".to_owned(),
            json!({ "max_tokens": 2 }),
            json!([text("he")]),
            "max_tokens",
            Value::Null,
        ),
        (
            "hello you".to_owned(),
            json!({ "stop_sequences": [" y"] }),
            json!([text("hello")]),
            "stop_sequence",
            json!(" y"),
        ),
        (
            format!("<think>why</think>well {call}"),
            json!({ "tools": tools, "tool_choice": { "type": "auto" } }),
            json!([{ "type": "thinking", "thinking": "why", "signature": "" }, text("well"), use_block]),
            "tool_use",
            Value::Null,
        ),
    ] {
        let mut body = message(&words, more);
        let whole = served.post(PATH, &body).ok();
        body["stream"] = true.into();
        let streamed = joined(&events(&served.post(PATH, &body)));

        assert_eq!(
            whole["content"].as_array().map(Vec::len),
            content.as_array().map(Vec::len)
        );
        let whole = plain(whole);
        assert_eq!(
            (&whole["content"], &whole["stop_reason"]),
            (&content, &json!(reason))
        );
        assert_eq!(whole["stop_sequence"], sequence);
        assert_eq!(
            (&whole["type"], &whole["role"], &whole["model"]),
            (&json!("message"), &json!("assistant"), &json!("scripted"))
        );
        assert_eq!(plain(streamed), whole, "{body}");
    }
}

#[test]
fn conversations_reach_the_template_and_are_counted() {
    let served = served();
    let body = json!({
        "model": "scripted",
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: 7" },
            { "type": "text", "text": "be terse" },
        ],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "what time" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm ", "signature": "s" },
                { "type": "text", "text": "look" },
                { "type": "tool_use", "id": "t1", "name": "now", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "noon" }] },
                { "type": "text", "text": "so" },
            ] },
        ],
    });

    let counted = served.post("/v1/messages/count_tokens", &body).ok();

    let prompt = "system:be terse;user:what time;assistant:hm look<tool_call>{\"name\": \"now\", \
                  \"arguments\": {}}</tool_call>;tool:noon;user:so;assistant:";
    assert_eq!(counted, json!({ "input_tokens": prompt.len() }));
}

/// With what Claude Code sends besides the conversation.
#[test]
fn the_body_of_a_coding_agent_is_answered() {
    let served = served();
    let cached = json!({ "type": "ephemeral" });
    let mut body = message(
        "hi",
        json!({
            "system": [{ "type": "text", "text": "be terse", "cache_control": cached }],
            "tools": [{
                "name": "Bash",
                "description": "Runs a command",
                "input_schema": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "type": "object",
                    "properties": { "command": { "type": "string", "description": "The command" } },
                    "required": ["command"],
                    "additionalProperties": false,
                },
                "cache_control": cached,
            }],
            "metadata": { "user_id": "user_1_account__session_2" },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "context_management": { "edits": [] },
            "temperature": 1,
            "stream": true,
        }),
    );
    body["messages"][0]["content"] = json!([
        { "type": "text", "text": "<system-reminder>be good</system-reminder>" },
        { "type": "text", "text": "say hi", "cache_control": cached },
    ]);
    let headers = [
        ("anthropic-version", "2023-06-01"),
        (
            "anthropic-beta",
            "claude-code-20250219,interleaved-thinking-2025-05-14",
        ),
        ("x-stainless-lang", "js"),
    ];

    let reply = served.request(
        &format!("POST {PATH}?beta=true"),
        &headers,
        &body.to_string(),
    );

    assert_eq!(joined(&events(&reply))["content"][0]["text"], "hi");
    assert_eq!(reply.headers.get("x-worker-ignored"), None);
}

#[test]
fn errors_have_the_form_of_this_api() {
    let served = served();
    let missing = json!({ "model": "scripted", "messages": [] });
    for (body, status, kind, part) in [
        (
            missing,
            400,
            "invalid_request_error",
            "max_tokens is required",
        ),
        (
            message("hi", json!({ "model": "other" })),
            404,
            "not_found_error",
            "'other' does not exist",
        ),
        (
            message(
                "hi",
                json!({ "messages": [{ "role": "system", "content": "x" }] }),
            ),
            400,
            "invalid_request_error",
            "not user or assistant",
        ),
        (
            message(
                "hi",
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            ),
            400,
            "invalid_request_error",
            "'image' is not supported",
        ),
        (
            message(
                "hi",
                json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "x" }] }] }),
            ),
            400,
            "invalid_request_error",
            "no message before it has a tool call 'x'",
        ),
        (
            message("hi", json!({ "tool_choice": { "type": "x" } })),
            400,
            "invalid_request_error",
            "auto, any, tool or none",
        ),
        (
            message("hi", json!({ "tool_choice": { "type": "any" } })),
            400,
            "invalid_request_error",
            "tool_choice requires tools",
        ),
    ] {
        let reply = served.post(PATH, &body);
        let error = reply.json();
        assert_eq!(
            (reply.status, &error["type"]),
            (status, &json!("error")),
            "{error}"
        );
        assert_eq!(error["error"]["type"], kind);
        assert!(
            error["error"]["message"]
                .as_str()
                .is_some_and(|text| text.contains(part)),
            "{error}"
        );
    }
    // Other paths keep theirs.
    assert!(served.get("/nowhere").json()["error"]["code"].is_string());
}

#[test]
fn a_fault_in_a_stream_is_an_error_event() {
    let served = served();
    served.control.hold();
    let client = served.begin(PATH, &message("hi", json!({ "stream": true })));
    served.wait_for_running(1);
    served.control.fail(2);
    served.control.release();
    let events = events(&Reply::read(client));
    let last = events.last().expect("an event");
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("api_error"))
    );
}

#[test]
fn unknown_fields_and_tools_of_other_servers_are_named() {
    let served = served();
    let more = json!({
        "tools": [{ "type": "web_search_20250305", "name": "web_search" }],
        "metadata": { "user_id": "u" }, "thinking": { "type": "disabled" }, "zeta": 1,
    });
    let reply = served.post(PATH, &message("hi", more));
    reply.ok();
    assert_eq!(reply.headers["x-worker-ignored"], "tools[0].type, zeta");
}
