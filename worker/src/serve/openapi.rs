//! `/openapi.json`: the paths, the fields of their requests, and the form of their answers. Fields are read one by
//! one (`fields.rs`), so there are no types to derive this from; tests send each field that is named here, and look for
//! fields that are not.

use serde_json::{Map, Value, json};
use worker_cuda::generate::service::{MAX_CHOICES, MAX_STOPS};
use worker_cuda::scheduler::{MAX_PRIORITY, MAX_STOP_TOKENS};

use super::parameters::{self, DAY_MS, MAX_PENALTY_TOKENS, MAX_TOP_LOGPROBS};
use super::{anthropic, embeddings, execute, responses};

/// A name of a field and what it takes.
type Field = (&'static str, Value);

/// The document of a server that offers models of these names.
pub fn document(names: &[String]) -> Value {
    let model = json!({ "$ref": "#/components/schemas/Model" });
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        paths.entry(path).or_insert_with(|| json!({}))[method] = operation;
    };
    for (path, summary, required, fields, answer) in posts(&model) {
        add(path, "post", post(summary, &required, fields, answer));
    }
    for (path, summary, required, fields) in jobs() {
        let mut operation = post(summary, &required, fields, json!(null));
        for (_, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            if response.get("content").is_some() {
                let schema = json!({ "$ref": "#/components/schemas/JobError" });
                response["content"] = json_content(schema);
            }
        }
        operation["responses"][if path == "/execute" { "200" } else { "202" }] = match path {
            "/execute" => json!({
                "description": "Events: started, token, metrics, end or error",
                "headers": ignored_header(),
                "content": { "text/event-stream": { "schema": object(&["event", "data"]) } },
            }),
            _ => json!({ "description": "Accepted", "content": json_content(object(&["status"])) }),
        };
        add(path, "post", operation);
    }
    for (path, operation) in loads() {
        add(path, "post", with_id(operation, &model));
    }
    for (path, summary, answer) in gets() {
        let mut operation = json!({ "summary": summary, "responses": answers(answer, &[]) });
        if path.ends_with("{id}") {
            operation = with_id(operation, &model);
        }
        if path.starts_with("/health") {
            let unwell =
                json!({ "description": "It cannot serve", "content": json_content(object(&[])) });
            operation["responses"]["503"] = unwell;
        }
        if ["/health/live", "/health/ready"].contains(&path) {
            operation["security"] = json!([]);
        }
        add(path, "get", operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "worker-orcd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Docs: docs/SERVING.md. A field that is null counts as absent.",
        },
        "security": [{ "bearer": [] }, { "header": [] }, {}],
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "header": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
            "schemas": {
                "Model": { "type": "string", "enum": names },
                "Error": error_schema(),
                "JobError": { "anyOf": [object(&["errors"]), object(&["code", "message"])] },
            },
        },
        "paths": paths,
    })
}

type Post = (
    &'static str,
    &'static str,
    Vec<&'static str>,
    Vec<Field>,
    Value,
);

/// Paths that take a body: summary, required fields, all fields, the answer.
fn posts(model: &Value) -> Vec<Post> {
    let with_model = |mut fields: Vec<Field>| {
        fields.push(("model", model.clone()));
        fields
    };
    let chat = || [sampling(), generation(), messages(), chat_only()].concat();
    let text = || [sampling(), generation(), text_only()].concat();
    let completion = |object: &str| {
        let choice = object_with(&[("index", whole(0, 15)), ("finish_reason", string())]);
        object_with(&[
            ("id", string()),
            ("object", json!({ "const": object })),
            ("created", natural()),
            ("model", string()),
            ("choices", list(choice)),
            ("usage", usage(["prompt_tokens", "completion_tokens"])),
        ])
    };
    vec![
        (
            "/v1/chat/completions",
            "Answers a conversation",
            vec!["model", "messages"],
            with_model(chat()),
            completion("chat.completion"),
        ),
        (
            "/v1/completions",
            "Continues a text or tokens",
            vec!["model", "prompt"],
            with_model(text()),
            completion("text_completion"),
        ),
        (
            "/v1/embeddings",
            "Converts texts or tokens to vectors",
            vec!["model", "input"],
            with_model(embeddings_fields()),
            object_with(&[
                ("object", json!({ "const": "list" })),
                ("model", string()),
                ("data", list(embedding())),
                (
                    "usage",
                    object_with(&[("prompt_tokens", natural()), ("total_tokens", natural())]),
                ),
            ]),
        ),
        (
            "/v1/responses",
            "Answers by OpenAI's Responses API, without state",
            vec!["model", "input"],
            with_model(responses_fields()),
            object_with(&[
                ("id", string()),
                ("object", json!({ "const": "response" })),
                ("status", json!({ "enum": ["completed", "incomplete"] })),
                ("output", list(object(&["type", "id"]))),
                ("usage", usage(["input_tokens", "output_tokens"])),
            ]),
        ),
        (
            "/v1/messages",
            "Answers a conversation by Anthropic's API",
            vec!["model", "messages", "max_tokens"],
            with_model(anthropic_fields()),
            object_with(&[
                ("id", string()),
                ("type", json!({ "const": "message" })),
                ("role", json!({ "const": "assistant" })),
                ("content", list(object(&["type"]))),
                ("stop_reason", string()),
                ("usage", object(&["input_tokens", "output_tokens"])),
            ]),
        ),
        (
            "/v1/messages/count_tokens",
            "Counts the tokens of such a request",
            vec!["model", "messages"],
            with_model(anthropic_fields()),
            object_with(&[("input_tokens", natural())]),
        ),
        (
            "/tokenize",
            "Converts a text or messages to tokens",
            vec![],
            [
                with_model(messages()),
                vec![
                    ("content", string()),
                    ("prompt", string()),
                    ("add_special", boolean()),
                    ("parse_special", boolean()),
                ],
            ]
            .concat(),
            object_with(&[("tokens", tokens()), ("count", natural())]),
        ),
        (
            "/detokenize",
            "Converts tokens to a text",
            vec!["tokens"],
            with_model(vec![("tokens", tokens()), ("show_special", boolean())]),
            object_with(&[("content", string()), ("prompt", string())]),
        ),
        (
            "/apply-template",
            "Writes messages as the chat template does",
            vec!["messages"],
            with_model([messages(), vec![("add_generation_prompt", boolean())]].concat()),
            object_with(&[("prompt", string())]),
        ),
    ]
}

/// The older worker's paths: summary, required fields, all fields.
fn jobs() -> Vec<(&'static str, &'static str, Vec<&'static str>, Vec<Field>)> {
    let stops = json!({ "type": "array", "items": stop(), "maxItems": execute::MAX_STOPS });
    let prompt =
        json!({ "type": "string", "minLength": 1, "maxLength": execute::MAX_PROMPT_CHARS });
    let fields = vec![
        ("job_id", stop()),
        ("prompt", prompt),
        ("max_tokens", whole(1, execute::MAX_TOKENS)),
        ("temperature", number(0.0, 2.0)),
        ("seed", whole(0, u64::MAX)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", natural()),
        ("repetition_penalty", number(0.0, 2.0)),
        ("min_p", number(0.0, 1.0)),
        ("stop", stops),
    ];
    vec![
        (
            "/execute",
            "Runs a job of the older worker",
            vec!["job_id", "prompt", "max_tokens"],
            fields,
        ),
        (
            "/cancel",
            "Cancels such a job",
            vec!["job_id"],
            vec![("job_id", stop())],
        ),
        (
            "/shutdown",
            "Ends the server when its requests have ended",
            vec![],
            vec![],
        ),
    ]
}

/// The path of a model names it.
fn with_id(mut operation: Value, model: &Value) -> Value {
    operation["parameters"] =
        json!([{ "name": "id", "in": "path", "required": true, "schema": model }]);
    operation
}

/// Paths of admins without a body.
fn loads() -> [(&'static str, Value); 2] {
    let events = json!({
        "description": "Events: progress, and loaded or error",
        "content": { "text/event-stream": { "schema": object(&["event", "data"]) } },
    });
    let mut load = answers(json!(null), &["409", "500", "503"]);
    load["200"] = events;
    let unloaded = object(&["id", "state", "cut_requests"]);
    let unload = answers(unloaded, &["409", "500", "503"]);
    [
        (
            "/v1/models/{id}/load",
            json!({ "summary": "Loads a model", "responses": load }),
        ),
        (
            "/v1/models/{id}/unload",
            json!({ "summary": "Unloads a model", "responses": unload }),
        ),
    ]
}

/// Paths without a body: summary, the answer.
fn gets() -> Vec<(&'static str, &'static str, Value)> {
    let model = || object(&["id", "object", "state"]);
    let models = object_with(&[
        ("object", json!({ "const": "list" })),
        ("data", list(model())),
    ]);
    let health = object(&["status", "state", "model", "running", "waiting"]);
    vec![
        ("/v1/models", "Lists the models", models),
        ("/v1/models/{id}", "Describes a model", model()),
        ("/health", "Describes the state of the server", health),
        (
            "/health/live",
            "Whether the engine makes progress",
            object(&["status"]),
        ),
        (
            "/health/ready",
            "Whether requests are accepted",
            object(&["status"]),
        ),
        ("/metrics", "Measurements for Prometheus", json!(null)),
        (
            "/openapi.json",
            "This document",
            object(&["openapi", "paths"]),
        ),
    ]
}

fn post(summary: &str, required: &[&str], fields: Vec<Field>, answer: Value) -> Value {
    let streams = fields.iter().any(|(name, _)| *name == "stream");
    // Null counts as absent.
    let properties: Map<String, Value> = fields
        .into_iter()
        .map(|(name, schema)| {
            let is_required = required.contains(&name);
            (
                name.to_owned(),
                if is_required { schema } else { or_null(schema) },
            )
        })
        .collect();
    let schema = json!({ "type": "object", "required": required, "properties": properties });
    let mut operation = json!({
        "summary": summary,
        "requestBody": { "required": true, "content": json_content(schema) },
        "responses": answers(answer, &["400", "404", "408", "413", "429", "500", "503", "504"]),
    });
    operation["responses"]["200"]["headers"] = ignored_header();
    if streams {
        operation["responses"]["200"]["content"]["text/event-stream"] =
            json!({ "schema": object(&["data"]) });
    }
    operation
}

/// Status 200 with a form, and errors. A form that is null: text.
fn answers(answer: Value, statuses: &[&str]) -> Value {
    let content = match answer.is_null() {
        true => json!({ "text/plain": { "schema": string() } }),
        false => json_content(answer),
    };
    let mut all = json!({ "200": { "description": "The answer", "content": content } });
    let error = || {
        let schema = json!({ "$ref": "#/components/schemas/Error" });
        json!({ "description": "Refused or failed", "content": json_content(schema) })
    };
    for status in ["401", "403", "404", "405"].iter().chain(statuses) {
        all[*status] = error();
    }
    all["431"] =
        json!({ "description": "More than 100 headers, or too long ones; without a body" });
    all
}

fn ignored_header() -> Value {
    let description = "Names of the fields that were not understood";
    json!({ "x-worker-ignored": { "description": description, "schema": string() } })
}

fn error_schema() -> Value {
    let openai = object_with(&[("message", string()), ("type", string())]);
    // Anthropic's errors have a type next to the error.
    object_with(&[("error", openai)])
}

fn sampling() -> Vec<Field> {
    vec![
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", natural()),
        ("min_p", number(0.0, 1.0)),
        ("typical_p", number(0.0, 1.0)),
        ("repetition_penalty", number(0.01, 2.0)),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("penalty_last_n", whole(1, MAX_PENALTY_TOKENS)),
        (
            "seed",
            json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX }),
        ),
        (
            "logit_bias",
            json!({ "type": "object", "additionalProperties": number(-100.0, 100.0) }),
        ),
    ]
}

fn generation() -> Vec<Field> {
    let stops = json!({ "type": "array", "items": stop(), "maxItems": MAX_STOPS });
    let stop_tokens = json!({ "type": "array", "items": token(), "maxItems": MAX_STOP_TOKENS });
    vec![
        ("min_tokens", natural()),
        ("stop", json!({ "anyOf": [stop(), stops] })),
        ("stop_token_ids", stop_tokens),
        ("ignore_eos", boolean()),
        ("n", whole(1, MAX_CHOICES.into())),
        ("return_token_ids", boolean()),
        ("response_format", object(&["type"])),
        ("modalities", json!({ "const": ["text"] })),
        ("stream", boolean()),
        (
            "stream_options",
            json!({ "type": "object", "properties": { "include_usage": { "type": "boolean" } } }),
        ),
    ]
    .into_iter()
    .chain(order())
    .chain(without_effect(&parameters::HARMLESS))
    .collect()
}

fn without_effect(names: &[&'static str]) -> Vec<Field> {
    let schema = || json!({ "description": "Has no effect" });
    names.iter().map(|name| (*name, schema())).collect()
}

fn order() -> Vec<Field> {
    vec![
        ("priority", whole(0, MAX_PRIORITY.into())),
        ("deadline_ms", whole(1, DAY_MS)),
        ("cache_salt", string()),
    ]
}

fn messages() -> Vec<Field> {
    let message = json!({
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": { "enum": ["system", "developer", "user", "assistant", "tool"] },
            "content": content("text"),
        },
    });
    let function = object_with(&[("name", string())]);
    let tool = object_with(&[
        ("type", json!({ "const": "function" })),
        ("function", function),
    ]);
    vec![
        ("messages", list(message)),
        ("tools", list(tool)),
        ("tool_choice", json!({ "type": ["string", "object"] })),
        ("parallel_tool_calls", boolean()),
        ("chat_template_kwargs", object(&[])),
        ("reasoning_effort", string()),
    ]
}

/// A string, or parts of text.
fn content(kind: &str) -> Value {
    let part = object_with(&[("type", json!({ "const": kind })), ("text", string())]);
    json!({ "anyOf": [string(), list(part)] })
}

fn chat_only() -> Vec<Field> {
    vec![
        ("max_tokens", whole(1, u32::MAX.into())),
        ("max_completion_tokens", whole(1, u32::MAX.into())),
        ("logprobs", boolean()),
        ("top_logprobs", whole(0, MAX_TOP_LOGPROBS)),
        (
            "prediction",
            object_with(&[
                ("type", json!({ "const": "content" })),
                ("content", content("text")),
            ]),
        ),
    ]
}

fn text_only() -> Vec<Field> {
    vec![
        ("max_tokens", whole(0, u32::MAX.into())),
        ("max_completion_tokens", whole(0, u32::MAX.into())),
        (
            "prompt",
            json!({ "anyOf": [string(), tokens(), list(string())] }),
        ),
        ("best_of", whole(1, MAX_CHOICES.into())),
        ("echo", boolean()),
        ("logprobs", whole(0, MAX_TOP_LOGPROBS)),
        ("suffix", string()),
        ("tool_choice", json!({ "enum": ["none", "auto"] })),
        ("parallel_tool_calls", boolean()),
    ]
}

fn embeddings_fields() -> Vec<Field> {
    let input = json!({ "anyOf": [stop(), tokens()] });
    let inputs = json!({ "type": "array", "items": input, "maxItems": embeddings::MAX_INPUTS });
    let own = vec![
        ("input", json!({ "anyOf": [stop(), tokens(), inputs] })),
        ("encoding_format", json!({ "enum": ["float", "base64"] })),
        ("dimensions", whole(1, u32::MAX.into())),
    ];
    [own, order(), without_effect(&parameters::HARMLESS)].concat()
}

fn embedding() -> Value {
    let values = json!({ "anyOf": [string(), { "type": "array", "items": { "type": "number" } }] });
    object_with(&[
        ("object", json!({ "const": "embedding" })),
        ("index", natural()),
        ("embedding", values),
    ])
}

fn responses_fields() -> Vec<Field> {
    let item = json!({
        "type": "object",
        "properties": { "type": { "enum": ["message", "function_call", "function_call_output", "reasoning"] } },
    });
    let own = vec![
        ("input", json!({ "anyOf": [string(), list(item)] })),
        ("instructions", string()),
        ("max_output_tokens", whole(1, u32::MAX.into())),
        ("text", object(&[])),
        ("reasoning", object(&[])),
        ("tools", list(object(&["type"]))),
        ("tool_choice", json!({ "type": ["string", "object"] })),
        ("stream", boolean()),
        ("parallel_tool_calls", boolean()),
        ("truncation", json!({ "const": "disabled" })),
        ("top_logprobs", json!({ "const": 0 })),
        ("stream_options", object(&[])),
        ("chat_template_kwargs", object(&[])),
    ];
    let shared = ["temperature", "top_p", "top_k", "min_p", "seed"];
    let harmless = without_effect(&responses::HARMLESS);
    [own, only(sampling(), &shared), order(), harmless].concat()
}

fn anthropic_fields() -> Vec<Field> {
    let message = object_with(&[
        ("role", json!({ "enum": ["user", "assistant"] })),
        ("content", content("text")),
    ]);
    let own = vec![
        ("messages", list(message)),
        ("max_tokens", whole(1, u32::MAX.into())),
        ("system", content("text")),
        ("stop_sequences", list(stop())),
        ("stream", boolean()),
        ("tools", list(object(&["name"]))),
        ("tool_choice", object(&["type"])),
        ("thinking", object(&["type"])),
        ("output_config", object(&[])),
        ("chat_template_kwargs", object(&[])),
    ];
    let shared = ["temperature", "top_p", "top_k", "seed"];
    let harmless = without_effect(&anthropic::HARMLESS);
    [own, only(sampling(), &shared), order(), harmless].concat()
}

fn only(fields: Vec<Field>, names: &[&str]) -> Vec<Field> {
    let known = |(name, _): &Field| names.contains(name);
    fields.into_iter().filter(known).collect()
}

fn or_null(mut schema: Value) -> Value {
    match schema.get_mut("type") {
        Some(kind @ Value::String(_)) => {
            *kind = json!([kind, "null"]);
            schema
        }
        Some(Value::Array(kinds)) => {
            kinds.push("null".into());
            schema
        }
        _ => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

fn string() -> Value {
    json!({ "type": "string" })
}

fn stop() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

fn boolean() -> Value {
    json!({ "type": "boolean" })
}

fn number(low: f64, high: f64) -> Value {
    json!({ "type": "number", "minimum": low, "maximum": high })
}

fn whole(low: u64, high: u64) -> Value {
    json!({ "type": "integer", "minimum": low, "maximum": high })
}

fn natural() -> Value {
    whole(0, u32::MAX.into())
}

fn token() -> Value {
    natural()
}

fn tokens() -> Value {
    list(token())
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn usage(names: [&str; 2]) -> Value {
    let counts = names.into_iter().chain(["total_tokens"]);
    let counts: Vec<(&str, Value)> = counts.map(|name| (name, natural())).collect();
    object_with(&counts)
}

/// An object with at least these fields.
fn object(required: &[&str]) -> Value {
    json!({ "type": "object", "required": required })
}

fn object_with(fields: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> = fields
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn json_content(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}
