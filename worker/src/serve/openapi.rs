//! `/openapi.json`: the paths, the fields of their requests, and the form of their answers. Fields are read one by
//! one (`fields.rs`), so there are no types to derive this from; tests send each field that is named here, and look for
//! fields that are not.

use serde_json::{Value, json};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, HttpMethod, InfoBuilder, ObjectBuilder, OpenApiBuilder, PathItem,
    PathsBuilder, Required, Response, ResponseBuilder, SecurityRequirement, Type,
};
use worker_cuda::generate::service::{MAX_CHOICES, MAX_STOPS};
use worker_cuda::scheduler::{MAX_PRIORITY, MAX_STOP_TOKENS};

use super::parameters::{self, DAY_MS, MAX_PENALTY_TOKENS, MAX_TOP_LOGPROBS};
use super::schema::{
    Field, SchemaRef, any_of, boolean, bounded, constant, enumeration, list, list_up_to, natural,
    non_empty_string, number, object, object_of, object_with, or_null, reference, string,
    string_or_object, typed, whole,
};
use super::{anthropic, embeddings, execute, responses};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const TEXT: &str = "text/plain";

/// A path and what it does.
type Path = (&'static str, OperationBuilder);

/// The document of a server that offers models of these names.
pub fn document(names: &[String]) -> Value {
    let description = "Docs: docs/SERVING.md. A field that is null counts as absent.";
    let info = InfoBuilder::new()
        .title("worker-orcd")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(description));
    let mut paths = PathsBuilder::new();
    for (path, operation) in posts().into_iter().chain(jobs()).chain(loads()) {
        paths = paths.path(path, PathItem::new(HttpMethod::Post, operation));
    }
    for (path, operation) in gets() {
        paths = paths.path(path, PathItem::new(HttpMethod::Get, operation));
    }
    let model = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(names.to_vec()));
    let error = object_with([("message", string()), ("type", string())]);
    // Anthropic's errors have a type next to the error.
    let error = object_with([("error", error)]);
    let job_error = any_of([object(&["errors"]), object(&["code", "message"])]);
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("x-api-key")));
    let components = ComponentsBuilder::new()
        .security_scheme("bearer", bearer)
        .security_scheme("header", header)
        .schema("Model", model)
        .schema("Error", error)
        .schema("JobError", job_error);
    let key = |name| SecurityRequirement::new(name, [""; 0]);
    let without_key = SecurityRequirement::default();
    let document = OpenApiBuilder::new()
        .info(info)
        .security(Some([key("bearer"), key("header"), without_key]))
        .components(Some(components.build()))
        .paths(paths);
    json!(document.build())
}

/// Paths that take a body with a model.
fn posts() -> [Path; 9] {
    let chat = [sampling(), generation(), messages(), chat_only()].concat();
    let text = [sampling(), generation(), text_only()].concat();
    let content = vec![
        ("content", string()),
        ("prompt", string()),
        ("add_special", boolean()),
        ("parse_special", boolean()),
    ];
    let template = vec![("add_generation_prompt", boolean())];
    [
        post(
            "/v1/chat/completions",
            "Answers a conversation",
            &["model", "messages"],
            chat,
            completion("chat.completion"),
        ),
        post(
            "/v1/completions",
            "Continues a text or tokens",
            &["model", "prompt"],
            text,
            completion("text_completion"),
        ),
        post(
            "/v1/embeddings",
            "Converts texts or tokens to vectors",
            &["model", "input"],
            embeddings_fields(),
            embeddings_answer(),
        ),
        post(
            "/v1/responses",
            "Answers by OpenAI's Responses API, without state",
            &["model", "input"],
            responses_fields(),
            responses_answer(),
        ),
        post(
            "/v1/messages",
            "Answers a conversation by Anthropic's API",
            &["model", "messages", "max_tokens"],
            anthropic_fields(),
            anthropic_answer(),
        ),
        post(
            "/v1/messages/count_tokens",
            "Counts the tokens of such a request",
            &["model", "messages"],
            anthropic_fields(),
            object_with([("input_tokens", natural())]),
        ),
        post(
            "/tokenize",
            "Converts a text or messages to tokens",
            &[],
            [messages(), content].concat(),
            object_with([("tokens", tokens()), ("count", natural())]),
        ),
        post(
            "/detokenize",
            "Converts tokens to a text",
            &["tokens"],
            vec![("tokens", tokens()), ("show_special", boolean())],
            object_with([("content", string()), ("prompt", string())]),
        ),
        post(
            "/apply-template",
            "Writes messages as the chat template does",
            &["messages"],
            [messages(), template].concat(),
            object_with([("prompt", string())]),
        ),
    ]
}

/// The older worker's paths.
fn jobs() -> [Path; 3] {
    let prompt = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(execute::MAX_PROMPT_CHARS));
    let fields = vec![
        ("job_id", non_empty_string()),
        ("prompt", prompt.into()),
        ("max_tokens", whole(1, execute::MAX_TOKENS)),
        ("temperature", number(0.0, 2.0)),
        ("seed", whole(0, u64::MAX)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", natural()),
        ("repetition_penalty", number(0.0, 2.0)),
        ("min_p", number(0.0, 1.0)),
        ("stop", list_up_to(execute::MAX_STOPS, non_empty_string())),
    ];
    let job = |summary, required: &[&str], fields| with_body(summary, "JobError", required, fields);
    let required = ["job_id", "prompt", "max_tokens"];
    let execute = job("Runs a job of the older worker", &required, fields);
    let cancel = job(
        "Cancels such a job",
        &["job_id"],
        vec![("job_id", non_empty_string())],
    );
    let shutdown = job("Ends the server when its requests have ended", &[], vec![]);
    let events = events("Events: started, token, metrics, end or error");
    let accepted = || response("Accepted", JSON, object(&["status"]));
    [
        ("/execute", execute.response("200", with_ignored(events))),
        ("/cancel", cancel.response("202", accepted())),
        ("/shutdown", shutdown.response("202", accepted())),
    ]
}

/// Paths of admins without a body.
fn loads() -> [Path; 2] {
    let load = |summary, answer| {
        let operation = operation(summary, "Error", &["409", "500", "503"]);
        with_id(operation.response("200", answer))
    };
    let loaded = events("Events: progress, and loaded or error");
    let unloaded = answer(object(&["id", "state", "cut_requests"]));
    [
        ("/v1/models/{id}/load", load("Loads a model", loaded)),
        ("/v1/models/{id}/unload", load("Unloads a model", unloaded)),
    ]
}

/// Paths without a body.
fn gets() -> [Path; 7] {
    let get = |summary, answer| operation(summary, "Error", &[]).response("200", answer);
    let health = |summary, fields: &[&str]| {
        let unwell = response("It cannot serve", JSON, object(&[]));
        get(summary, answer(object(fields))).response("503", unwell)
    };
    let model = || object(&["id", "object", "state"]);
    let models = object_with([("object", constant("list")), ("data", list(model()))]);
    let models = get("Lists the models", answer(models));
    let model = with_id(get("Describes a model", answer(model())));
    let fields = ["status", "state", "model", "running", "waiting"];
    let state = health("Describes the state of the server", &fields);
    let live = health("Whether the engine makes progress", &["status"]);
    let ready = health("Whether requests are accepted", &["status"]);
    let metrics = response("The answer", TEXT, string());
    let document = answer(object(&["openapi", "paths"]));
    [
        ("/v1/models", models),
        ("/v1/models/{id}", model),
        ("/health", state),
        ("/health/live", live.securities(Some([]))),
        ("/health/ready", ready.securities(Some([]))),
        ("/metrics", get("Measurements for Prometheus", metrics)),
        ("/openapi.json", get("This document", document)),
    ]
}

/// A path that takes these fields and `model`, and streams if one of them is `stream`.
fn post(
    path: &'static str,
    summary: &str,
    required: &[&str],
    mut fields: Vec<Field>,
    schema: SchemaRef,
) -> Path {
    let mut answer = with_ignored(answer(schema));
    if fields.iter().any(|(name, _)| *name == "stream") {
        answer = answer.content(EVENTS, Content::new(Some(object(&["data"]))));
    }
    fields.push(("model", reference("Model")));
    let operation = with_body(summary, "Error", required, fields);
    (path, operation.response("200", answer))
}

/// An operation that takes these fields. Its errors have the schema `error`.
fn with_body(
    summary: &str,
    error: &str,
    required: &[&str],
    fields: Vec<Field>,
) -> OperationBuilder {
    // Null counts as absent.
    let fields = fields.into_iter().map(|(name, schema)| {
        let is_required = required.contains(&name);
        (name, if is_required { schema } else { or_null(schema) })
    });
    let schema = object_of(required, fields);
    let body = RequestBodyBuilder::new()
        .content(JSON, Content::new(Some(schema)))
        .required(Some(Required::True));
    let statuses = ["400", "404", "408", "413", "429", "500", "503", "504"];
    operation(summary, error, &statuses).request_body(Some(body.build()))
}

/// An operation with errors of these statuses and of those that every path has.
fn operation(summary: &str, error: &str, statuses: &[&str]) -> OperationBuilder {
    let refused = response("Refused or failed", JSON, reference(error)).build();
    let headers = "More than 100 headers, or too long ones; without a body";
    let operation = OperationBuilder::new()
        .summary(Some(summary))
        .response("431", Response::new(headers));
    let statuses = ["401", "403", "404", "405"].iter().chain(statuses);
    statuses.fold(operation, |operation, status| {
        operation.response(*status, refused.clone())
    })
}

/// The path of a model names it.
fn with_id(operation: OperationBuilder) -> OperationBuilder {
    let id = ParameterBuilder::new()
        .name("id")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(reference("Model")));
    operation.parameter(id)
}

fn answer(schema: SchemaRef) -> ResponseBuilder {
    response("The answer", JSON, schema)
}

fn events(description: &str) -> ResponseBuilder {
    response(description, EVENTS, object(&["event", "data"]))
}

fn response(description: &str, media_type: &str, schema: SchemaRef) -> ResponseBuilder {
    ResponseBuilder::new()
        .description(description)
        .content(media_type, Content::new(Some(schema)))
}

fn with_ignored(response: ResponseBuilder) -> ResponseBuilder {
    let names = HeaderBuilder::new()
        .description(Some("Names of the fields that were not understood"))
        .schema(Some(string()));
    response.header("x-worker-ignored", names.build())
}

fn completion(kind: &str) -> SchemaRef {
    let choice = object_with([("index", whole(0, 15)), ("finish_reason", string())]);
    object_with([
        ("id", string()),
        ("object", constant(kind)),
        ("created", natural()),
        ("model", string()),
        ("choices", list(choice)),
        ("usage", usage(["prompt_tokens", "completion_tokens"])),
    ])
}

fn usage(names: [&'static str; 2]) -> SchemaRef {
    let [read, written] = names.map(|name| (name, natural()));
    object_with([read, written, ("total_tokens", natural())])
}

fn embeddings_answer() -> SchemaRef {
    let values = any_of([string(), list(typed(Type::Number))]);
    let embedding = object_with([
        ("object", constant("embedding")),
        ("index", natural()),
        ("embedding", values),
    ]);
    let usage = object_with([("prompt_tokens", natural()), ("total_tokens", natural())]);
    object_with([
        ("object", constant("list")),
        ("model", string()),
        ("data", list(embedding)),
        ("usage", usage),
    ])
}

fn responses_answer() -> SchemaRef {
    object_with([
        ("id", string()),
        ("object", constant("response")),
        ("status", enumeration(["completed", "incomplete"])),
        ("output", list(object(&["type", "id"]))),
        ("usage", usage(["input_tokens", "output_tokens"])),
    ])
}

fn anthropic_answer() -> SchemaRef {
    object_with([
        ("id", string()),
        ("type", constant("message")),
        ("role", constant("assistant")),
        ("content", list(object(&["type"]))),
        ("stop_reason", string()),
        ("usage", object(&["input_tokens", "output_tokens"])),
    ])
}

fn sampling() -> Vec<Field> {
    let bias = ObjectBuilder::new().additional_properties(Some(number(-100.0, 100.0)));
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
        ("seed", bounded(Type::Integer, i64::MIN, u64::MAX)),
        ("logit_bias", bias.into()),
    ]
}

fn generation() -> Vec<Field> {
    let stops = list_up_to(MAX_STOPS, non_empty_string());
    vec![
        ("min_tokens", natural()),
        ("stop", any_of([non_empty_string(), stops])),
        ("stop_token_ids", list_up_to(MAX_STOP_TOKENS, token())),
        ("ignore_eos", boolean()),
        ("n", whole(1, MAX_CHOICES.into())),
        ("return_token_ids", boolean()),
        ("response_format", object(&["type"])),
        ("modalities", constant(vec!["text"])),
        ("stream", boolean()),
        (
            "stream_options",
            object_of(&[], [("include_usage", boolean())]),
        ),
    ]
    .into_iter()
    .chain(order())
    .chain(without_effect(&parameters::HARMLESS))
    .collect()
}

fn without_effect(names: &[&'static str]) -> Vec<Field> {
    let schema = || {
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some("Has no effect"))
    };
    names.iter().map(|name| (*name, schema().into())).collect()
}

fn order() -> Vec<Field> {
    vec![
        ("priority", whole(0, MAX_PRIORITY.into())),
        ("deadline_ms", whole(1, DAY_MS)),
        ("cache_salt", string()),
    ]
}

fn messages() -> Vec<Field> {
    let roles = ["system", "developer", "user", "assistant", "tool"];
    let fields = [("role", enumeration(roles)), ("content", content())];
    let function = object_with([("name", string())]);
    let tool = object_with([("type", constant("function")), ("function", function)]);
    vec![
        ("messages", list(object_of(&["role"], fields))),
        ("tools", list(tool)),
        ("tool_choice", string_or_object()),
        ("parallel_tool_calls", boolean()),
        ("chat_template_kwargs", object(&[])),
        ("reasoning_effort", string()),
    ]
}

/// A string, or parts of text.
fn content() -> SchemaRef {
    let part = object_with([("type", constant("text")), ("text", string())]);
    any_of([string(), list(part)])
}

fn chat_only() -> Vec<Field> {
    let prediction = object_with([("type", constant("content")), ("content", content())]);
    vec![
        ("max_tokens", whole(1, u32::MAX.into())),
        ("max_completion_tokens", whole(1, u32::MAX.into())),
        ("logprobs", boolean()),
        ("top_logprobs", whole(0, MAX_TOP_LOGPROBS)),
        ("prediction", prediction),
    ]
}

fn text_only() -> Vec<Field> {
    vec![
        ("max_tokens", natural()),
        ("max_completion_tokens", natural()),
        ("prompt", any_of([string(), tokens(), list(string())])),
        ("best_of", whole(1, MAX_CHOICES.into())),
        ("echo", boolean()),
        ("logprobs", whole(0, MAX_TOP_LOGPROBS)),
        ("suffix", string()),
        ("tool_choice", enumeration(["none", "auto"])),
        ("parallel_tool_calls", boolean()),
    ]
}

fn embeddings_fields() -> Vec<Field> {
    let inputs = list_up_to(
        embeddings::MAX_INPUTS,
        any_of([non_empty_string(), tokens()]),
    );
    let own = vec![
        ("input", any_of([non_empty_string(), tokens(), inputs])),
        ("encoding_format", enumeration(["float", "base64"])),
        ("dimensions", whole(1, u32::MAX.into())),
    ];
    [own, order(), without_effect(&parameters::HARMLESS)].concat()
}

fn responses_fields() -> Vec<Field> {
    let kinds = [
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
    ];
    let item = object_of(&[], [("type", enumeration(kinds))]);
    let own = vec![
        ("input", any_of([string(), list(item)])),
        ("instructions", string()),
        ("max_output_tokens", whole(1, u32::MAX.into())),
        ("text", object(&[])),
        ("reasoning", object(&[])),
        ("tools", list(object(&["type"]))),
        ("tool_choice", string_or_object()),
        ("stream", boolean()),
        ("parallel_tool_calls", boolean()),
        ("truncation", constant("disabled")),
        ("top_logprobs", constant(0)),
        ("stream_options", object(&[])),
        ("chat_template_kwargs", object(&[])),
    ];
    let shared = ["temperature", "top_p", "top_k", "min_p", "seed"];
    let harmless = without_effect(&responses::HARMLESS);
    [own, only(sampling(), &shared), order(), harmless].concat()
}

fn anthropic_fields() -> Vec<Field> {
    let roles = enumeration(["user", "assistant"]);
    let message = object_with([("role", roles), ("content", content())]);
    let own = vec![
        ("messages", list(message)),
        ("max_tokens", whole(1, u32::MAX.into())),
        ("system", content()),
        ("stop_sequences", list(non_empty_string())),
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

fn token() -> SchemaRef {
    natural()
}

fn tokens() -> SchemaRef {
    list(token())
}
