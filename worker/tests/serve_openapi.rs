//! `serve`: the OpenAPI document.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

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

/// The paths that check all fields, the least body of each, and the fields of the document.
fn requests(document: &Value) -> Vec<(String, Value, Map<String, Value>)> {
    let paths = document["paths"].as_object().expect("an object").iter();
    let described = paths.filter_map(|(path, operations)| {
        let body = &operations["post"]["requestBody"]["content"]["application/json"];
        let fields = body["schema"]["properties"].as_object()?.clone();
        let required = body["schema"]["required"].as_array().into_iter().flatten();
        let mut least = json!({});
        for name in required.filter_map(Value::as_str) {
            least[name] = match name {
                "model" => json!("scripted"),
                "messages" => json!([{ "role": "user", "content": "say hi" }]),
                "tokens" => json!([3]),
                "max_tokens" => json!(5),
                _ => json!("say hi"),
            };
        }
        if path == "/tokenize" {
            least["messages"] = json!([{ "role": "user", "content": "say hi" }]);
        }
        Some((path.clone(), least, fields))
    });
    described
        .filter(|(path, ..)| path != "/shutdown" && path != "/cancel")
        .collect()
}

/// Sends each field that the document has to a server that refuses unknown ones.
#[test]
fn every_field_of_the_document_is_known() {
    let served = Served::with(|setup| setup.options.strict = true);
    let document = served.get("/openapi.json").ok();
    let mut count = 0;
    for (path, least, fields) in requests(&document) {
        let is_unknown = |field: &str| {
            let mut body = least.clone();
            // Whatever a known field takes, it is not this.
            let map = body.as_object_mut().expect("an object");
            map.entry(field).or_insert(json!([[]]));
            served.post(&path, &body).body.contains("unknown fields")
        };
        for field in fields.keys() {
            assert!(!is_unknown(field), "{path}: {field}");
            count += 1;
        }
        assert!(is_unknown("no_such_field"), "{path}");
    }
    assert!(count > 100, "{count} fields");
}

/// Sends all words of the server's source as fields: those that it does not call unknown are in the document, or are
/// refused.
#[test]
fn every_field_that_is_taken_is_in_the_document() {
    let served = Served::with(|setup| setup.options.strict = true);
    let document = served.get("/openapi.json").ok();
    let words = words_of_source();
    assert!(words.len() > 300, "{} words", words.len());
    for (path, least, fields) in requests(&document) {
        let mut body = least.clone();
        let map = body.as_object_mut().expect("an object");
        for word in &words {
            map.entry(word).or_insert(Value::Null);
        }
        let reply = served.post(&path, &body).body;
        let unknown = reply.split("unknown fields: ").nth(1).expect(&reply);
        let unknown = unknown.split('"').next().expect("a list");
        let unknown: BTreeSet<&str> = unknown.split(", ").collect();
        let is_missing =
            |word: &&String| !unknown.contains(word.as_str()) && !fields.contains_key(*word);
        for word in words.iter().filter(is_missing) {
            let mut body = least.clone();
            body[word] = json!([[]]);
            let reply = served.post(&path, &body).body;
            let is_refused = reply.contains("is not supported by this server");
            assert!(is_refused, "the document lacks {path}: {word}: {reply}");
        }
    }
}

fn words_of_source() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve");
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut words = BTreeSet::new();
    for file in files.map(|file| file.expect("a file").path()) {
        let text = match file.extension().is_some_and(|kind| kind == "rs") {
            true => std::fs::read_to_string(file).expect("UTF-8"),
            false => continue,
        };
        let is_word = |text: &&str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        words.extend(text.split('"').filter(is_word).map(str::to_owned));
    }
    words
}

#[test]
fn every_path_of_the_document_answers() {
    let served = Served::start();
    let document = served.get("/openapi.json").ok();
    for (path, operations) in document["paths"].as_object().expect("an object") {
        for method in operations.as_object().expect("an object").keys() {
            let is_admins = path == "/shutdown" || path.ends_with("load");
            if !is_admins {
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
