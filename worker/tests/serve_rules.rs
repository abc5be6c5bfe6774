//! `serve`: answers that follow a schema, a grammar, or the parameters of tools, over real sockets. The scripted engine
//! takes the first token that a mask allows in place of one that it forbids.

use std::time::Duration;

use serde_json::{Value, json};

use http::{Reply, Served};

#[path = "support/http.rs"]
mod http;

const CHAT: &str = "/v1/chat/completions";

const HERMES: &str =
    "{# <tool_call> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
const MISTRAL: &str =
    "{# [TOOL_CALLS] #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
const MISTRAL_NAMES: &str = "{# [TOOL_CALLS] [ARGS] #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
const LLAMA: &str = "{# <|python_tag|> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:";
const THINKING: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}<think>\n";

fn served(template: &'static str) -> Served {
    Served::with(|setup| {
        setup.template = template;
        (setup.limits.page_count, setup.limits.max_sequence_tokens) = (1 << 10, 1 << 14);
    })
}

fn chat(words: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {words}") }],
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// `{"a": integer}`.
fn format() -> Value {
    let schema = json!({
        "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["a"], "additionalProperties": false,
    });
    json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } })
}

fn tools() -> Value {
    let city = json!({
        "type": "object", "properties": { "city": { "enum": ["Rome", "Oslo"] } },
        "required": ["city"], "additionalProperties": false,
    });
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": city } },
        { "type": "function", "function": { "name": "now", "parameters": none } },
    ])
}

/// The content of each choice of a stream.
fn streamed(reply: &Reply, choices: usize) -> Vec<String> {
    let mut contents = vec![String::new(); choices];
    for event in reply.events().iter().filter(|event| *event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).expect("JSON");
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("an index") as usize;
        contents[index] += choice["delta"]["content"].as_str().unwrap_or_default();
    }
    contents
}

/// The content of a choice, which is an object with a number `a`.
#[track_caller]
fn assert_follows(content: &str) {
    let value: Value =
        serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
    let number = value["a"].as_u64().filter(|number| *number <= 99);
    assert!(
        number.is_some() && value.as_object().is_some_and(|object| object.len() == 1),
        "{content}"
    );
}

#[test]
fn an_answer_follows_its_schema_whole_streamed_and_in_each_choice() {
    let served = served(PLAIN);
    for words in [r#"{"a":12}"#, "sure thing", r#"{"b":1}"#, r#"{"a":123}"#] {
        let body = chat(words, json!({ "response_format": format(), "n": 4 }));
        let whole = served.post(CHAT, &body).ok();
        let mut stream = body.clone();
        stream["stream"] = true.into();
        let streamed = streamed(&served.post(CHAT, &stream), 4);
        for (index, streamed) in streamed.iter().enumerate() {
            let choice = &whole["choices"][index];
            let content = choice["message"]["content"].as_str().expect("a text");
            assert_follows(content);
            assert_eq!(
                (content, &choice["finish_reason"]),
                (streamed.as_str(), &json!("stop"))
            );
        }
    }
    let body = chat(r#"{"a":12}"#, json!({ "response_format": format() }));
    let exact = served.post(CHAT, &body).ok();
    assert_eq!(exact["choices"][0]["message"]["content"], r#"{"a":12}"#);
    let body = chat(
        r#"{"x":[1]}"#,
        json!({ "response_format": { "type": "json_object" } }),
    );
    let object = served.post(CHAT, &body).ok();
    assert_eq!(object["choices"][0]["message"]["content"], r#"{"x":[1]}"#);
}

#[test]
fn grammars_hold_for_text_completions_too() {
    let served = Served::start();
    for (syntax, definition, words, text) in [
        ("regex", "[0-9]{2}-[ab]{2}", "12-ab", "12-ab"),
        ("regex", "[0-9]{2}-[ab]{2}", "1x_ba", "10-ba"),
        ("lark", "start: \"a\" X\nX: /[xyz]+/\n", "axyz", "axyz"),
    ] {
        let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
        let reply = served.post(
            "/v1/completions",
            &json!({ "model": "scripted", "prompt": format!("say {words}"), "response_format": format }),
        );
        let choice = &reply.ok()["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!(text), &json!("stop"))
        );
    }
}

#[test]
fn the_rule_begins_after_the_reasoning() {
    let served = served(THINKING);
    for words in ["why {</think>{\"a\":1}", "why {</think>so"] {
        let reply = served
            .post(CHAT, &chat(words, json!({ "response_format": format() })))
            .ok();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "why {");
        assert_follows(message["content"].as_str().expect("a text"));
    }
}

#[test]
fn what_cannot_be_followed_is_refused_with_its_name() {
    let served = served(PLAIN);
    let grammar = |syntax: &str, definition: &str| json!({ "type": "grammar", "syntax": syntax, "definition": definition });
    let schema =
        |schema: Value| json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    for (format, param) in [
        (json!("json"), "response_format"),
        (json!({ "type": "xml" }), "response_format.type"),
        (json!({ "type": "json_schema" }), "response_format.schema"),
        (
            json!({ "type": "json_schema", "json_schema": {} }),
            "response_format.json_schema.schema",
        ),
        (schema(json!({ "type": "text" })), "response_format"),
        (
            schema(json!({ "not": { "type": "object" } })),
            "response_format",
        ),
        (
            schema(json!({ "const": "x".repeat(300 << 10) })),
            "response_format",
        ),
        (grammar("lark", "start: nowhere"), "response_format"),
        (grammar("regex", "(a"), "response_format"),
        (grammar("bnf", "a"), "response_format.syntax"),
    ] {
        let reply = served.post(CHAT, &chat("hi", json!({ "response_format": format })));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.body);
    }
    let either = schema(json!({ "oneOf": [{ "type": "object" }, { "properties": { "a": {} } }] }));
    let reply = served.post(CHAT, &chat("hi", json!({ "response_format": either })));
    let message = reply.assert_error(400, "invalid_value", Some("response_format"));
    assert!(
        message.ends_with("use anyOf, or schemas that certainly exclude each other"),
        "{message}"
    );
    let format = grammar("regex", "(a");
    let reply = served.post(CHAT, &chat("hi", json!({ "response_format": format })));
    let message = reply.assert_error(400, "invalid_value", Some("response_format"));
    assert!(message.ends_with("unclosed group"), "{message}");
    // The server continues.
    served.post(CHAT, &chat("hi", json!({}))).ok();
}

/// The calls of an answer: names and arguments.
#[track_caller]
fn calls(reply: &Reply) -> Vec<(String, Value)> {
    let body = reply.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
    assert!(choice["message"]["content"].is_null(), "{body}");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().expect("a string");
        let name = function["name"].as_str().expect("a name");
        (
            name.to_owned(),
            serde_json::from_str(arguments).expect("JSON"),
        )
    };
    calls.iter().map(call).collect()
}

#[test]
fn required_calls_are_made_in_the_form_of_each_template() {
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{ "type": "function", "function": { "name": "now" } }],
    } });
    for template in [HERMES, MISTRAL, MISTRAL_NAMES, LLAMA, PLAIN] {
        let served = served(template);
        let ask = |choice: Value| {
            let body = chat("no", json!({ "tools": tools(), "tool_choice": choice }));
            calls(&served.post(CHAT, &body))
        };
        let (name, arguments) = &ask(json!("required"))[0];
        let cities = [json!({ "city": "Rome" }), json!({ "city": "Oslo" })];
        match name.as_str() {
            "weather" => assert!(cities.contains(arguments), "{arguments}"),
            "now" => assert_eq!(*arguments, json!({})),
            other => panic!("{other}"),
        }
        let weather = ask(named("weather"));
        assert_eq!(weather.len(), 1);
        assert!(
            weather[0].0 == "weather" && cities.contains(&weather[0].1),
            "{weather:?}"
        );
        assert_eq!(ask(allowed.clone())[0], ("now".into(), json!({})));
    }
}

#[test]
fn what_the_model_wants_to_call_it_calls() {
    let served = served(HERMES);
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>{{\"name\":\"{name}\",\"arguments\":{arguments}}}</tool_call>")
    };
    let both = call("weather", "{\"city\":\"Rome\"}") + &call("now", "{}");
    let body = |more: Value| {
        let mut body = chat(
            &both,
            json!({ "tools": tools(), "tool_choice": "required" }),
        );
        body["parallel_tool_calls"] = more;
        body
    };
    let weather = ("weather".to_owned(), json!({ "city": "Rome" }));
    let now = ("now".to_owned(), json!({}));
    assert_eq!(
        calls(&served.post(CHAT, &body(json!(true)))),
        [weather.clone(), now.clone()]
    );
    assert_eq!(
        calls(&served.post(CHAT, &body(json!(false)))),
        std::slice::from_ref(&weather)
    );
    // Free text first; then arguments of the tool, whatever the model wants.
    let wrong = call("weather", "{\"city\":\"Rome\",\"x\":1}");
    for wanted in [both, format!("well {wrong}")] {
        let reply = served
            .post(CHAT, &chat(&wanted, json!({ "tools": tools() })))
            .ok();
        let message = &reply["choices"][0]["message"];
        let arguments = message["tool_calls"][0]["function"]["arguments"]
            .as_str()
            .expect("a call");
        assert_eq!(
            serde_json::from_str::<Value>(arguments).expect("JSON"),
            weather.1
        );
    }
    // Either the schema or a call.
    for (words, is_call) in [(call("now", "{}"), true), (r#"{"a":1}"#.to_owned(), false)] {
        let more = json!({ "tools": tools(), "response_format": format() });
        let reply = served.post(CHAT, &chat(&words, more)).ok();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["tool_calls"].is_array(), is_call, "{message}");
        if !is_call {
            assert_follows(message["content"].as_str().expect("a text"));
        }
    }
}

#[test]
fn the_other_interfaces_have_rules_under_their_own_names() {
    let served = served(HERMES);
    let schema = &format()["json_schema"]["schema"];
    let format = json!({ "type": "json_schema", "name": "x", "schema": schema });
    let response = served.post(
        "/v1/responses",
        &json!({ "model": "scripted", "input": "say no", "text": { "format": format } }),
    );
    assert_follows(
        response.ok()["output"][0]["content"][0]["text"]
            .as_str()
            .expect("a text"),
    );
    let body = |more: Value| {
        let mut body = json!({
            "model": "scripted", "max_tokens": 900, "messages": [{ "role": "user", "content": "say no" }],
        });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    let message = served.post(
        "/v1/messages",
        &body(json!({ "output_config": { "format": format } })),
    );
    assert_follows(message.ok()["content"][0]["text"].as_str().expect("a text"));
    let tool = json!({ "name": "now", "input_schema": { "type": "object", "additionalProperties": false } });
    let any = json!({ "type": "any", "disable_parallel_tool_use": true });
    let call = served
        .post(
            "/v1/messages",
            &body(json!({ "tools": [tool], "tool_choice": any })),
        )
        .ok();
    assert_eq!(
        (&call["content"][0]["type"], &call["content"][0]["input"]),
        (&json!("tool_use"), &json!({}))
    );
}

#[test]
fn calls_are_free_if_their_parameters_cannot_be_kept_but_not_if_there_is_no_time() {
    let call = r#"<tool_call>{"name":"weather","arguments":{"city":"Oslo"}}</tool_call>"#;
    let strange = json!([{ "type": "function", "function": {
        "name": "weather", "parameters": { "type": "object", "not": { "type": "null" } },
    } }]);
    let free = served(HERMES);
    for _ in 0..2 {
        let reply = free
            .post(CHAT, &chat(call, json!({ "tools": strange })))
            .ok();
        let function = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], r#"{"city":"Oslo"}"#);
    }
    let hurried = Served::with(|setup| {
        setup.template = HERMES;
        setup.options.rule_timeout = Duration::ZERO;
    });
    // Compiling it takes far longer than a timer.
    let text = |at| json!({ "type": "string", "pattern": format!("^[a-z]{{1,{at}}}x$") });
    let many = (1..900).map(|at| (format!("p{at}"), text(at % 50 + 1)));
    let many = json!({ "type": "object", "properties": many.collect::<serde_json::Map<_, _>>() });
    let many =
        json!([{ "type": "function", "function": { "name": "weather", "parameters": many } }]);
    let reply = hurried.post(CHAT, &chat(call, json!({ "tools": many })));
    let error = reply.json();
    let code = error["error"]["code"].as_str().unwrap_or_default();
    assert!(
        matches!(
            (reply.status, code),
            (503, "rules_busy") | (400, "rule_too_slow")
        ),
        "{error}"
    );
}

#[test]
fn chains_of_rules_and_schemas_inside_of_grammars_are_refused() {
    let served = served(PLAIN);
    let chain: String = (0..24_000)
        .map(|at| format!("x{at}:x{}\n", at + 1))
        .collect();
    let properties = (0..1001).map(|at| (format!("p{at}"), json!({})));
    let wide = json!({ "properties": properties.collect::<serde_json::Map<_, _>>() });
    for (definition, part) in [
        (
            format!("start: x0\n{}x24000:\"a\"\n", &chain[..200_000]),
            "definitions",
        ),
        (
            format!("start: %json {wide}\n"),
            "more than 1000 properties",
        ),
    ] {
        let format = json!({ "type": "grammar", "syntax": "lark", "definition": definition });
        let reply = served.post(CHAT, &chat("hi", json!({ "response_format": format })));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains(part), "{}", reply.body);
    }
    served.post(CHAT, &chat("hi", json!({}))).ok();
}
