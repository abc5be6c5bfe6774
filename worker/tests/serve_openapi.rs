//! `serve`: the OpenAPI document.

use std::path::Path;

use serde_json::{Value, json};

use http::Served;

#[path = "support/http.rs"]
mod http;

#[test]
fn the_document_is_the_committed_one() {
    let served = Served::start();
    let mut found = served.get("/openapi.json").ok();
    let names = found["components"]["schemas"]["Model"]["enum"].take();
    assert_eq!(names, json!(["scripted", "alias"]));
    found["components"]["schemas"]["Model"]["enum"] = json!(["model"]);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi.json");
    let text = lines(&found, 0) + "\n";
    std::fs::write(&new, text).expect("a temporary file");

    let committed: Value = serde_json::from_str(&committed).unwrap_or_default();
    assert!(found == committed, "copy {} to docs", new.display());
}

/// As JSON, with a line for each field of a request.
fn lines(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(map) if depth < 8 && !map.is_empty() => {
            let indent = " ".repeat(depth + 1);
            let entries = map.iter();
            let entries: Vec<String> = entries
                .map(|(name, value)| format!("{indent}{name:?}: {}", lines(value, depth + 1)))
                .collect();
            format!("{{\n{}\n{}}}", entries.join(",\n"), " ".repeat(depth))
        }
        value => value.to_string(),
    }
}

/// Sends each field that the document has to a server that refuses unknown ones.
#[test]
fn every_field_of_the_document_is_known() {
    let served = Served::with(|setup| setup.options.strict = true);
    let document = served.get("/openapi.json").ok();
    let is_unknown = |path: &str, required: &[Value], field: &str| {
        let mut body = json!({});
        for name in required.iter().filter_map(Value::as_str) {
            body[name] = match name {
                "model" => json!("scripted"),
                "messages" => json!([{ "role": "user", "content": "say hi" }]),
                "tokens" => json!([3]),
                "max_tokens" => json!(5),
                _ => json!("say hi"),
            };
        }
        if path == "/tokenize" {
            body["messages"] = json!([{ "role": "user", "content": "say hi" }]);
        }
        // Whatever a known field takes, it is not this.
        body.as_object_mut()
            .expect("an object")
            .entry(field)
            .or_insert(json!([[]]));
        served.post(path, &body).body.contains("unknown fields")
    };
    let mut count = 0;
    for (path, operations) in document["paths"].as_object().expect("an object") {
        let schema = &operations["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(fields) = schema["properties"].as_object() else {
            continue;
        };
        let required = schema["required"].as_array().expect("a list");
        for field in fields
            .keys()
            .filter(|_| path != "/shutdown" && path != "/cancel")
        {
            assert!(!is_unknown(path, required, field), "{path}: {field}");
            count += 1;
        }
        if path != "/shutdown" && path != "/cancel" {
            assert!(is_unknown(path, required, "no_such_field"), "{path}");
        }
    }
    assert!(count > 100, "{count} fields");
}

#[test]
fn every_path_of_the_document_answers() {
    let served = Served::start();
    let document = served.get("/openapi.json").ok();
    for (path, operations) in document["paths"].as_object().expect("an object") {
        for method in operations.as_object().expect("an object").keys() {
            if path != "/shutdown" {
                let head = format!(
                    "{} {}",
                    method.to_uppercase(),
                    path.replace("{id}", "alias")
                );
                let reply = served.request(&head, &[], "{}");
                assert!(
                    [200, 202, 400].contains(&reply.status),
                    "{head}: {}",
                    reply.body
                );
            }
        }
    }
}
