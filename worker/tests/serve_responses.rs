//! `serve`: OpenAI's Responses API over real sockets, of a scripted engine.

use serde_json::{Value, json};

use http::{Reply, Served};

#[path = "support/http.rs"]
mod http;

const PATH: &str = "/v1/responses";

/// Writes calls as Hermes' templates do.
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | length }}</tools>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}\
    {% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}</tool_call>{% endfor %};\
    {% endfor %}assistant:";

fn served() -> Served {
    Served::with(|setup| setup.template = TEMPLATE)
}

fn asked(input: Value, more: Value) -> Value {
    let mut body = json!({ "model": "scripted", "input": input });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let blocks = reply
        .body
        .split_terminator("\n\n")
        .filter(|event| *event != ":");
    let mut events = Vec::new();
    for event in blocks {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], events.len());
        events.push(data);
    }
    events
}

/// Items without their ids, which must have the right beginnings.
fn plain(output: &Value) -> Value {
    let mut output = output.clone();
    for item in output.as_array_mut().expect("a list") {
        let prefix = match item["type"].as_str().expect("a type") {
            "message" => "msg_",
            "reasoning" => "rs_",
            _ => "fc_",
        };
        assert!(
            item["id"].as_str().is_some_and(|id| id.starts_with(prefix)),
            "{item}"
        );
        item["id"] = Value::Null;
        if let Some(id) = item.get_mut("call_id") {
            *id = Value::Null;
        }
    }
    output
}

/// Checks that the events describe the items, and returns the last event.
fn check_events(events: &[Value]) -> Value {
    let names: Vec<_> = events[..2]
        .iter()
        .map(|event| event["type"].as_str())
        .collect();
    assert_eq!(
        names,
        [Some("response.created"), Some("response.in_progress")]
    );
    let mut items: Vec<Value> = Vec::new();
    let (mut text, mut open) = (String::new(), None);
    for event in &events[2..events.len() - 1] {
        let kind = event["type"]
            .as_str()
            .expect("a type")
            .strip_prefix("response.")
            .expect("a prefix");
        assert_eq!(event["output_index"], items.len(), "{event}");
        if kind != "output_item.added" && kind != "output_item.done" {
            assert_eq!(Some(&event["item_id"]), open.as_ref(), "{event}");
        }
        match kind {
            "output_item.added" => {
                assert_eq!(event["item"]["status"], "in_progress");
                assert!(open.is_none());
                (open, text) = (Some(event["item"]["id"].clone()), String::new());
            }
            "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta" => {
                text += event["delta"].as_str().expect("text");
            }
            "output_text.done" | "reasoning_text.done" => assert_eq!(event["text"], text),
            "function_call_arguments.done" => assert_eq!(event["arguments"], text),
            "content_part.added" => assert_eq!(event["part"]["text"], ""),
            "content_part.done" => assert_eq!(event["part"]["text"], text),
            "output_item.done" => {
                assert_eq!(Some(&event["item"]["id"]), open.as_ref());
                open = None;
                items.push(event["item"].clone());
            }
            other => panic!("{other}"),
        }
    }
    let last = events.last().expect("an event").clone();
    assert_eq!(last["response"]["output"], Value::from(items));
    last
}

#[test]
fn responses_are_whole_and_streamed() {
    let served = served();
    let call = r#"<tool_call>{"name":"now","arguments":{"a":1}}</tool_call>"#;
    let tools = json!([{ "type": "function", "name": "now", "parameters": { "type": "object" } }]);
    let text_with = |text: &str, status: &str| {
        let part =
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        json!({ "type": "message", "id": null, "status": status, "role": "assistant", "content": [part] })
    };
    let text = |text: &str| text_with(text, "completed");
    let thought = json!({
        "type": "reasoning", "id": null, "status": "completed", "summary": [],
        "content": [{ "type": "reasoning_text", "text": "why" }],
    });
    let called = json!({
        "type": "function_call", "id": null, "call_id": null, "status": "completed",
        "name": "now", "arguments": "{\"a\":1}",
    });
    for (words, more, output, status) in [
        (
            "hello".to_owned(),
            json!({}),
            json!([text("hello")]),
            "completed",
        ),
        (
            "hello".to_owned(),
            json!({ "max_output_tokens": 2 }),
            json!([text_with("he", "incomplete")]),
            "incomplete",
        ),
        (
            format!("<think>why</think>well {call}"),
            json!({ "tools": tools, "tool_choice": "auto" }),
            json!([thought, text("well"), called]),
            "completed",
        ),
    ] {
        let mut body = asked(json!(format!("say {words}")), more);
        let whole = served.post(PATH, &body).ok();
        body["stream"] = true.into();
        let last = check_events(&events(&served.post(PATH, &body)));

        assert_eq!(
            (&whole["object"], &whole["status"]),
            (&json!("response"), &json!(status))
        );
        assert_eq!(plain(&whole["output"]), output, "{body}");
        assert_eq!(last["type"], format!("response.{status}"));
        assert_eq!(plain(&last["response"]["output"]), output);
        assert_eq!(last["response"]["usage"], whole["usage"]);
        let details = (
            &whole["usage"]["input_tokens_details"],
            &whole["usage"]["output_tokens_details"],
        );
        assert_eq!(
            details.0,
            &json!({ "cached_tokens": 0, "cache_write_tokens": 0 })
        );
        assert!(details.1["reasoning_tokens"].is_number());
        assert_eq!(whole["incomplete_details"].is_null(), status == "completed");
    }
}

#[test]
fn items_become_a_conversation() {
    let served = served();
    // As agents send them back: ids and states may lack, reasoning is skipped.
    let input = json!([
        { "role": "developer", "content": "be terse" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "what time" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [] },
        { "role": "assistant", "content": [{ "type": "output_text", "text": "look" }] },
        { "type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}" },
        { "type": "function_call", "call_id": "c2", "name": "day", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "noon" },
        { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "monday" }] },
        { "role": "user", "content": "say hi" },
    ]);
    let body = asked(input, json!({ "instructions": "be kind" }));

    let answer = served.post(PATH, &body).ok();

    let prompt = "system:be kind;system:be terse;user:what time;assistant:look<tool_call>now</tool_call>\
                  <tool_call>day</tool_call>;tool:noon;tool:monday;user:say hi;assistant:";
    assert_eq!(answer["usage"]["input_tokens"], prompt.len());
    assert_eq!(answer["output"][0]["content"][0]["text"], "hi");
}

#[test]
fn state_is_refused_and_harmless_fields_are_taken() {
    let served = served();
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("truncation", json!("auto")),
        ("tool_choice", json!("required")),
    ] {
        let reply = served.post(PATH, &asked(json!("say hi"), json!({ field: value })));
        reply.assert_error(400, "unsupported_value", Some(field));
    }
    let item = json!([{ "type": "item_reference", "id": "x" }]);
    let reply = served.post(PATH, &asked(item, json!({})));
    reply.assert_error(400, "unsupported_value", Some("input[0].type"));
    // What a coding agent sends.
    let agent = json!({
        "client_metadata": {}, "include": ["reasoning.encrypted_content"], "parallel_tool_calls": true,
        "prompt_cache_key": "k", "reasoning": { "effort": "low", "summary": "auto" }, "store": false,
        "text": { "verbosity": "low", "format": { "type": "text" } }, "tool_choice": "auto",
        "tools": [{ "type": "web_search" }, { "type": "function", "name": "f", "strict": true }],
    });
    let reply = served.post(PATH, &asked(json!("say hi"), agent));
    reply.ok();
    assert_eq!(reply.headers["x-worker-ignored"], "tools[0].type");
}

/// In the form of this API, and in that of chats.
#[test]
fn allowed_tools_are_the_only_ones_that_are_called() {
    let served = served();
    let tool = |name: &str| json!({ "type": "function", "name": name });
    let function = |name: &str| json!({ "type": "function", "function": { "name": name } });
    for (choice, status) in [
        (
            json!({ "type": "allowed_tools", "mode": "required", "tools": [tool("g")] }),
            200,
        ),
        (
            json!({ "type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [function("g")],
        } }),
            200,
        ),
        (
            json!({ "type": "allowed_tools", "mode": "required", "tools": [tool("h")] }),
            400,
        ),
        (
            json!({ "type": "allowed_tools", "mode": "required", "tools": [] }),
            400,
        ),
        (json!({ "type": "allowed_tools", "mode": "required" }), 400),
    ] {
        let more = json!({ "tools": [tool("f"), tool("g")], "tool_choice": choice });
        let reply = served.post(PATH, &asked(json!("say hi"), more));
        assert_eq!(reply.status, status, "{choice}: {}", reply.body);
        if status == 200 {
            let output = reply.ok()["output"].clone();
            let items = output.as_array().expect("a list");
            assert!(!items.is_empty());
            assert!(items.iter().all(|item| item["name"] == "g"), "{output}");
        }
    }
}

#[test]
fn a_fault_in_a_stream_is_a_failed_response() {
    let served = served();
    served.control.hold();
    let client = served.begin(PATH, &asked(json!("say hi"), json!({ "stream": true })));
    served.wait_for_running(1);
    served.control.fail(2);
    served.control.release();
    let last = check_events(&events(&Reply::read(client)));
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "engine_fault");
}
