//! `serve`: reasoning and tool calls, over real sockets, of a scripted engine.

use serde_json::{Value, json};

use http::{Reply, Served};

#[path = "support/http.rs"]
mod http;

const CHAT: &str = "/v1/chat/completions";

/// Writes tools as Hermes' templates do.
const HERMES: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}\
    {% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %};\
    {% endfor %}assistant:";
/// Knows nothing of tools.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
/// Begins with reasoning.
const THINKING: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}<think>\n";

const CALL: &str = r#"{"name":"weather","arguments":{"city":"Rome"}}"#;

fn served(template: &'static str) -> Served {
    Served::with(|setup| setup.template = template)
}

fn chat(words: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {words}") }],
        "tools": [
            { "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } },
            { "type": "function", "function": { "name": "now", "description": "The time" } },
        ],
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The message of a streamed answer, put together, and its reason.
fn joined(reply: &Reply) -> (Value, Value) {
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let (mut content, mut reasoning) = (String::new(), String::new());
    let (mut calls, mut reason) = (Vec::new(), Value::Null);
    for event in events {
        let chunk: Value = serde_json::from_str(&event).expect("JSON");
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["index"], calls.len());
            calls.push(call["function"].clone());
        }
        if !choice["finish_reason"].is_null() {
            assert!(reason.is_null());
            reason = choice["finish_reason"].clone();
        }
    }
    let message = json!({ "content": content, "reasoning": reasoning, "calls": calls });
    (message, reason)
}

/// The same of a whole one.
fn whole(reply: &Reply) -> (Value, Value) {
    let body = reply.ok();
    let choice = &body["choices"][0];
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<&Value> = calls
        .map(|call| {
            assert_eq!(call["type"], "function");
            assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
            &call["function"]
        })
        .collect();
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let message = json!({
        "content": text("content"), "reasoning": text("reasoning_content"), "calls": calls,
    });
    (message, choice["finish_reason"].clone())
}

#[track_caller]
fn assert_answers(served: &Served, body: &Value, message: Value, reason: &str) {
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let expected = (message, json!(reason));
    assert_eq!(whole(&served.post(CHAT, body)), expected, "{body}");
    assert_eq!(joined(&served.post(CHAT, &streamed)), expected, "{body}");
}

fn weather() -> Value {
    json!({ "name": "weather", "arguments": "{\"city\":\"Rome\"}" })
}

#[test]
fn calls_are_split_from_text_whole_and_streamed() {
    let served = served(HERMES);
    let call = format!("<tool_call>{CALL}</tool_call>");
    let now = json!({ "name": "now", "arguments": "{}" });
    for (words, content, calls) in [
        (call.clone(), "", json!([weather()])),
        (format!("well {call}"), "well", json!([weather()])),
        (
            format!("<think>x</think>{call}<tool_call>{{\"name\":\"now\"}}</tool_call>"),
            "",
            json!([weather(), now]),
        ),
    ] {
        let reasoning = if words.contains("think") { "x" } else { "" };
        let message = json!({ "content": content, "reasoning": reasoning, "calls": calls });
        assert_answers(&served, &chat(&words, json!({})), message, "tool_calls");
    }
    let reply = served.post(CHAT, &chat(&call, json!({}))).ok();
    assert_eq!(reply["choices"][0]["message"]["content"], Value::Null);
}

#[test]
fn what_is_no_call_is_text() {
    let served = served(HERMES);
    let call = format!("<tool_call>{CALL}</tool_call>");
    // Its parameters cannot be guaranteed, so that calls are free text.
    let elsewhere = json!({ "$ref": "https://example.org/parameters" });
    let function = json!({ "name": "weather", "parameters": elsewhere });
    let free = json!({ "tools": [{ "type": "function", "function": function }] });
    for (words, more) in [
        ("<tool_call>{</tool_call>", free.clone()),
        ("a <tool_call>", free),
        (call.as_str(), json!({ "tool_choice": "none" })),
        (call.as_str(), json!({ "tools": null })),
    ] {
        let message = json!({ "content": words, "reasoning": "", "calls": [] });
        assert_answers(&served, &chat(words, more), message, "stop");
    }
    let cut = chat(&call, json!({ "max_tokens": 20 }));
    let message = json!({ "content": &call[..20], "reasoning": "", "calls": [] });
    assert_answers(&served, &cut, message, "length");
}

#[test]
fn reasoning_is_split_and_counted() {
    let body = chat("<think>why</think>so", json!({ "tools": null }));
    let message = json!({ "content": "so", "reasoning": "why", "calls": [] });
    let plain = served(PLAIN);
    assert_answers(&plain, &body, message.clone(), "stop");
    let usage = &plain.post(CHAT, &body).ok()["usage"];
    let counted = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
    let most = "<think>why</think>".len() as u64;
    assert!(
        counted.is_some_and(|count| (3..most).contains(&count)),
        "{usage}"
    );
    // The template has begun the reasoning.
    let body = chat("why</think>\n\nso", json!({ "tools": null }));
    assert_answers(&served(THINKING), &body, message, "stop");
}

#[test]
fn a_template_without_tools_gets_them_as_text() {
    let served = served(PLAIN);
    let message = json!({ "content": "", "reasoning": "", "calls": [weather()] });
    assert_answers(&served, &chat(CALL, json!({})), message, "tool_calls");

    let rendered = served.post("/apply-template", &chat("hi", json!({}))).ok();

    let prompt = rendered["prompt"].as_str().expect("text");
    assert!(
        prompt.starts_with("system:You can call functions."),
        "{prompt}"
    );
    assert!(prompt.contains("\"name\":\"now\""), "{prompt}");
}

#[test]
fn the_history_of_calls_reaches_the_template() {
    let history = json!([
        { "role": "user", "content": "say hi" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Rome\"}" } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "sunny" },
    ]);
    let render = |template| {
        let body = json!({ "model": "scripted", "messages": history });
        let rendered = served(template).post("/apply-template", &body).ok();
        rendered["prompt"].as_str().expect("text").to_owned()
    };
    let arguments = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
    assert_eq!(
        render(HERMES),
        format!("user:say hi;assistant:<tool_call>{arguments}</tool_call>;tool:sunny;assistant:")
    );
    assert_eq!(
        render(PLAIN),
        format!("user:say hi;assistant:{CALL};user:Result of weather: sunny;assistant:")
    );
}

#[test]
fn an_answer_without_text_is_part_of_the_history() {
    let served = served(HERMES);
    for (more, status) in [
        (json!({ "content": null, "refusal": "no" }), 200),
        (json!({ "reasoning_content": "why" }), 200),
        (json!({ "content": null }), 400),
        (json!({ "refusal": null }), 400),
    ] {
        let mut answer = more.clone();
        answer["role"] = "assistant".into();
        let last = json!({ "role": "user", "content": "say hi" });
        let body = json!({ "model": "scripted", "messages": [answer, last] });
        let reply = served.post("/apply-template", &body);
        assert_eq!(reply.status, status, "{more}: {}", reply.body);
        if status == 200 {
            assert_eq!(reply.ok()["prompt"], "assistant:;user:say hi;assistant:");
        }
    }
}

/// As agents on OpenAI's clients send it: parts of text, calls without text, tools with strict schemas.
#[test]
fn the_body_of_a_coding_agent_is_answered() {
    let served = served(HERMES);
    let part = |text: &str| json!([{ "type": "text", "text": text }]);
    let body = json!({
        "model": "scripted",
        "messages": [
            { "role": "system", "content": part("you are an agent") },
            { "role": "user", "content": part("list the files") },
            { "role": "assistant", "content": null, "tool_calls": [{
                "id": "call_1", "type": "function", "index": 0,
                "function": { "name": "bash", "arguments": "{\"command\":\"ls\"}" },
            }] },
            { "role": "tool", "tool_call_id": "call_1", "content": part("a.txt") },
            { "role": "user", "content": part("say hi") },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "bash",
            "description": "Runs a command",
            "strict": true,
            "parameters": {
                "type": "object",
                "properties": { "command": { "type": "string" } },
                "required": ["command"],
                "additionalProperties": false,
            },
        } }],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "temperature": 0,
        "max_tokens": 100,
        "stream": true,
        "stream_options": { "include_usage": true },
        "prompt_cache_key": "session",
    });

    let reply = served.post(CHAT, &body);

    let (message, _) = joined(&reply);
    assert_eq!(message["content"], "hi");
    assert_eq!(reply.headers.get("x-worker-ignored"), None);
}

#[test]
fn broken_histories_and_tools_are_named() {
    let served = served(HERMES);
    let assistant = |call: Value| {
        let messages = json!([{ "role": "assistant", "content": null, "tool_calls": [call] }]);
        json!({ "messages": messages })
    };
    let function =
        |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    for (more, param) in [
        (
            assistant(json!({ "id": "a", "function": { "name": "f", "arguments": "{" } })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            assistant(json!({ "id": "a", "function": { "name": "f", "arguments": "[]" } })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            assistant(json!({ "id": "a", "function": {} })),
            "messages[0].tool_calls[0].function.name",
        ),
        (
            assistant(json!({ "id": "a", "type": "custom", "function": {} })),
            "messages[0].tool_calls[0].type",
        ),
        (
            json!({ "messages": [{ "role": "tool", "content": "x", "tool_call_id": "a" }] }),
            "messages[0].tool_call_id",
        ),
        (json!({ "tools": {} }), "tools"),
        (
            json!({ "tools": [{ "type": "web_search" }] }),
            "tools[0].type",
        ),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools[0].function",
        ),
        (function(json!({ "name": "a b" })), "tools[0].function.name"),
        (
            function(json!({ "name": "f", "parameters": 1 })),
            "tools[0].function.parameters",
        ),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "tool_choice": 1 }), "tool_choice"),
        (
            json!({ "tools": [], "tool_choice": "required" }),
            "tool_choice",
        ),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice",
        ),
        (
            json!({ "tool_choice": { "type": "x" } }),
            "tool_choice.type",
        ),
    ] {
        let reply = served.post(CHAT, &chat("hi", more));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.body);
    }
}

#[test]
fn allowed_tools_are_the_only_ones_that_the_model_sees() {
    let served = served(HERMES);
    let allowed = json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{ "type": "function", "function": { "name": "now" } }],
    } } });
    let rendered = served.post("/apply-template", &chat("hi", allowed)).ok();
    let prompt = rendered["prompt"].as_str().expect("text");
    assert!(
        prompt.contains("\"now\"") && !prompt.contains("weather"),
        "{prompt}"
    );
}
