//! The command line: output, errors and exit statuses.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use real_model::real_model;
use small_model::{gguf_file::GgufFile, head_of_answers, model_that_answers};
use support::{assert_fails, run, stderr, worker};

#[path = "../../tests/support/real_model.rs"]
mod real_model;
#[path = "support/small_model.rs"]
mod small_model;
mod support;

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).expect("JSON")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
}

/// Digest of the first tensor of `tiny`, by the reference implementation (the PyPI package blake3 1.0.5).
const TOKEN_EMBEDDING_BLAKE3: &str =
    "24a8cbfb2a5bd9cd683cfa5f843a1d8951a555affa4fc87ca3495d0235b836ac";

fn tiny() -> String {
    let path = root().join("cuda/tests/data/models/llama.gguf");
    path.to_str().expect("UTF-8").to_owned()
}

/// The real model, or None after printing why the test is skipped.
fn real() -> Option<String> {
    Some(real_model()?.to_str().expect("UTF-8").to_owned())
}

/// A file of its own for each test.
fn temporary(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a temporary file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &["dance"][..],
        &["run"],
        &["run", "--model", "x", "--temperature", "warm"],
        &["run", "--model", "x", "--draft-max", "4", "hello"],
        &["chat", "--model", "x", "--draft-ngram", "--draft-max", "16"],
        &["serve", "x", "--draft-ngram", "--draft-model", "y"],
        &["serve", "x", "--draft-head", "y", "--draft-model", "z"],
        &["run", "--model", "x", "--chat", "--raw", "hello"],
        &["inspect"],
        &["devices", "--backend", "host"],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(run(&["run", "--help"]).status.code(), Some(0));
    assert!(stdout(&run(&["--version"])).starts_with("worker-orcd "));
}

#[test]
fn devices_lists_the_host_and_the_reason_for_no_gpu() {
    let output = worker(&["devices"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = stdout(&output);
    assert!(
        text.lines().next().unwrap().starts_with("no CUDA device: "),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("host")), "{text}");
    let list = json(&run(&["devices", "--json"]));
    let devices = list["devices"].as_array().unwrap();
    assert!(devices.iter().any(|device| device["backend"] == "host"));
    if !worker_cuda::built_with_cuda() {
        assert_eq!(
            list["cublaslt_unavailable"],
            "no CUDA device: built without CUDA"
        );
    }
}

#[test]
fn backend_list_names_all_and_why_some_are_unavailable() {
    let text = stdout(&run(&["backend", "list"]));
    assert!(text.lines().any(|line| line.starts_with("host ")), "{text}");
    assert!(text.contains("not available: backend 'vulkan'"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("best: "), "{text}");
    let list = json(&run(&["backend", "list", "--json"]));
    let all = list["backends"].as_array().unwrap();
    assert_eq!(all[0]["name"], "cuda");
    let is_host = |entry: &Value| entry["name"] == "host" && entry["available"] == true;
    assert!(all.iter().any(is_host));
}

#[test]
fn backend_check_computes_or_reports_what_is_missing() {
    let checked = json(&run(&["backend", "check", "host", "--json"]));
    assert_eq!(checked["ok"], true);
    assert!(checked["checked"][0]["calls"].as_u64().unwrap() > 10);
    assert_fails(&run(&["backend", "check", "metal"]), 1, "metal");
    assert_fails(&run(&["backend", "check", "glide"]), 1, "there are cuda");
}

#[test]
fn a_model_runs_on_the_host_and_reports_it_if_no_gpu_is_visible() {
    let tokens = temporary("invisible.json", r#"{"sequences": [[1, 2, 3]]}"#);
    let out = temporary("invisible.f32", "");
    let model = tiny();
    let args = ["--model", &model, "--tokens", &tokens, "--out", &out];
    let invisible = |backend: &str| {
        worker(&["logits", "--backend", backend])
            .args(args)
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap()
    };

    let auto = invisible("auto");
    let cuda = invisible("cuda");

    assert!(auto.status.success(), "{}", stderr(&auto));
    let first = stderr(&auto).lines().next().unwrap_or("").to_owned();
    assert!(first.starts_with("no CUDA device: "), "{first}");
    assert!(first.contains("computing on the CPU"), "{first}");
    assert_ne!(std::fs::metadata(&out).unwrap().len(), 0);
    assert_fails(&cuda, 1, "no CUDA device: ");
}

#[test]
fn failures_are_one_line_and_exit_with_1() {
    let absent = run(&["inspect", "/nonexistent/model.gguf"]);
    assert_fails(&absent, 1, "/nonexistent/model.gguf");
    let bad = temporary("bad.gguf", "not a GGUF file at all");
    assert_fails(&run(&["inspect", &bad]), 1, "bad.gguf");
    assert_fails(&run(&["tokenize", "--model", &tiny(), "text"]), 1, "");
    let output = run(&["plan", &tiny(), "--backend", "cuda", "--device", "99"]);
    assert_fails(&output, 1, "hint: --backend host");
    let big = run(&["run", "--raw", "--model", &tiny(), "--backend", "host", "x"]);
    assert_fails(&big, 1, "");
}

#[test]
fn inspect_shows_metadata_tensors_and_formats() {
    let output = run(&["inspect", &tiny()]);
    assert!(output.status.success());
    let text = stdout(&output);
    for part in [
        "general.architecture = llama",
        "token_embd.weight",
        "32 x 64",
        "F32",
        "formats",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
    let whole = json(&run(&["inspect", "--json", &tiny()]));
    assert_eq!(whole["metadata"]["llama.block_count"], 2);
    assert_eq!(whole["tensors"].as_array().unwrap().len(), 21);
    assert_eq!(
        whole["tensors"][0]["dimensions"],
        serde_json::json!([32, 64])
    );

    assert!(whole["tensors"][0]["blake3"].is_null());
    let with_digests = json(&run(&["inspect", "--json", "--digests", &tiny()]));
    let digest = with_digests["tensors"][0]["blake3"].as_str().unwrap();
    assert_eq!(digest, TOKEN_EMBEDDING_BLAKE3);
    assert!(stdout(&run(&["inspect", "--digests", &tiny()])).contains(digest));
    let table = with_digests["tensors"][0]["bytes"].as_u64().unwrap();
    let all = with_digests["tensor_bytes"].as_u64().unwrap();
    assert_eq!(with_digests["bytes_per_token"], all - table);
}

#[test]
fn plan_reports_what_is_needed_and_whether_it_fits() {
    let plan = json(&run(&["plan", &tiny(), "--backend", "host", "--json"]));
    assert_eq!(plan["fits"], true);
    let sum: u64 = ["weights_bytes", "kv_bytes", "scratch_bytes"]
        .iter()
        .map(|key| plan[*key].as_u64().unwrap())
        .sum();
    assert_eq!(plan["total_bytes"], sum);
    assert!(!plan["device"].as_str().unwrap().is_empty());
    assert!(
        plan["tokens_per_second_max"].is_null(),
        "a host's bandwidth is not known"
    );
    let text = stdout(&run(&["plan", "--model", &tiny(), "--backend", "host"]));
    assert!(text.ends_with("fits\n"), "{text}");
    assert!(text.contains("KV cache"), "{text}");
    let small = ["plan", &tiny(), "--backend", "host", "--memory-budget", "1"];
    assert_fails(&run(&small), 1, "does not fit: needs ");
    let output = run(&[&small[..], &["--json"]].concat());
    assert_fails(&output, 1, "does not fit");
    let refused: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(refused["fits"], false);
    let longer = json(&run(&[
        "plan",
        &tiny(),
        "--backend",
        "host",
        "--json",
        "--context",
        "128",
    ]));
    assert!(longer["kv_bytes"].as_u64() < plan["kv_bytes"].as_u64());
}

#[test]
fn logits_are_written_for_every_position_of_every_sequence() {
    let tokens = temporary(
        "tokens.json",
        r#"{"sequences": [[1, 2, 3], [], [4], [1, 2]]}"#,
    );
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("logits.f32");
    let out = out.to_str().unwrap();
    let model = tiny();
    let args = [
        "logits",
        "--backend",
        "host",
        "--model",
        &model,
        "--tokens",
        &tokens,
        "--out",
        out,
    ];
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = std::fs::read(out).unwrap();
    assert_eq!(bytes.len(), 6 * 64 * 4);
    let row = |index: usize| &bytes[index * 256..][..256];
    assert_eq!(row(0), row(4), "both begin with token 1");
    assert_ne!(row(0), row(1));
    let broken = temporary("broken.json", r#"{"sequences": [[64]]}"#);
    let args = [
        "logits",
        "--backend",
        "host",
        "--model",
        &model,
        "--tokens",
        &broken,
        "--out",
        out,
    ];
    assert_fails(&run(&args), 1, "64");
}

#[test]
fn bench_measures_prefill_and_decode() {
    let model = tiny();
    let args = [
        "bench",
        "--backend",
        "host",
        "--threads",
        "1",
        "--model",
        &model,
        "--prompt-tokens",
        "16,32",
        "--tokens",
        "8",
        "--repeat",
        "2",
        "--json",
    ];
    let result = json(&run(&args));
    assert_eq!(result["threads"], 1);
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let (best, median) = (
            &row["best_tokens_per_second"],
            &row["median_tokens_per_second"],
        );
        assert!(
            best.as_f64() >= median.as_f64() && median.as_f64() > Some(0.0),
            "{row}"
        );
    }
    let table = stdout(&run(&args[..args.len() - 1]));
    assert!(
        table.contains("prefill 16") && table.contains("decode 8 at 16"),
        "{table}"
    );
}

const OPERATIONS: [&str; 6] = [
    "query_key_value",
    "rotate_and_store",
    "attention",
    "attention_output",
    "gate_up",
    "down",
];

/// Operations of a step of `tiny` on the host, which has two layers.
fn operations_on_the_host() -> Vec<&'static str> {
    let layers = [OPERATIONS, OPERATIONS].concat();
    [&["rotary_table", "embed"], &layers[..], &["logits"]].concat()
}

fn operations(step: &Value) -> Vec<&str> {
    let nodes = step["nodes"].as_array().expect("nodes");
    nodes
        .iter()
        .map(|node| node["operation"].as_str().expect("a name"))
        .collect()
}

#[test]
fn plan_lists_the_nodes_of_a_step() {
    let model = tiny();
    let on_host = ["plan", &model, "--backend", "host", "--steps"];
    let json_of = |args: &[&str]| json(&run(&[&on_host[..], args, &["--json"]].concat()));

    let decode = json_of(&[]);
    assert_eq!(operations(&decode), operations_on_the_host());
    let prefill = json_of(&["--tokens", "8", "--context", "32"]);
    let flops = |plan: &Value| plan["nodes"][2]["flops"].as_u64().expect("FLOPs");
    assert_eq!(flops(&prefill), 8 * flops(&decode));
    let text = stdout(&run(&on_host));
    assert!(text.contains("roofline: unknown for this device"), "{text}");

    let on_h200 = json_of(&["--device-table", "h200"]);
    assert_eq!(on_h200["rates"], "measured on h200");
    assert_eq!(on_h200["bytes_per_second"], 4_530_000_000_000u64);
    assert_eq!(operations(&on_h200)[0], "start_step", "as on that device");
    assert!(on_h200["nodes"][2]["limit_ns"].as_f64() > Some(0.0));
    let unknown = [&on_host[..], &["--device-table", "abacus"]].concat();
    assert_fails(&run(&unknown), 1, "H200");
}

#[test]
fn bench_profiles_the_nodes_of_a_step() {
    let model = tiny();
    let args = [
        "bench",
        "--backend",
        "host",
        "--threads",
        "1",
        "--model",
        &model,
        "--profile",
        "--prompt-tokens",
        "16",
        "--tokens",
        "4",
        "--depth",
        "3",
        "--repeat",
        "1",
    ];
    let result = json(&run(&[&args[..], &["--json"]].concat()));
    let steps = result["steps"].as_array().expect("steps");
    let shape = |step: &Value| (step["tokens"].as_u64(), step["context"].as_u64());
    assert_eq!(shape(&steps[0]), (Some(1), Some(3)));
    assert_eq!(shape(&steps[1]), (Some(16), Some(0)));
    for step in steps {
        assert_eq!(operations(step), operations_on_the_host());
        let measured = |node: &Value| node["measured_ns"].as_f64().unwrap_or(0.0);
        let nodes = step["nodes"].as_array().expect("nodes");
        let sum: f64 = nodes.iter().map(measured).sum();
        assert!(sum > 0.0 && step["step_us"].as_f64() > Some(0.0), "{step}");
        let nodes_us = step["nodes_us"].as_f64().expect("their sum");
        assert!((nodes_us - sum / 1e3).abs() < 1e-6 * nodes_us, "{step}");
    }
    let text = stdout(&run(&args));
    assert!(
        text.contains("step of 16 tokens after 0") && text.contains("the nodes overlap by"),
        "{text}"
    );
}

/// The check before measuring fits an engine of few positions, and one of small steps.
#[test]
fn bench_needs_no_more_than_what_it_measures() {
    let model = tiny();
    for sizes in [["--context", "16"], ["--batch", "3"]] {
        let args = [
            "bench",
            "--backend",
            "host",
            "--threads",
            "1",
            "--model",
            &model,
            "--prompt-tokens",
            "8",
            "--tokens",
            "2",
            "--depth",
            "2",
            "--repeat",
            "1",
            "--json",
        ];
        let result = json(&run(&[&args[..], &sizes].concat()));
        assert_eq!(result["rows"].as_array().map(Vec::len), Some(2));
    }
}

#[test]
fn run_answers_prompts_and_reports_speed_on_stderr() {
    let Some(model) = real() else { return };
    let prompt = "The capital of France is";
    let args = [
        "run",
        "--raw",
        "--model",
        &model,
        "--max-tokens",
        "6",
        "--backend",
        "host",
    ];
    let output = run(&[&args[..], &["--prompt", prompt]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("Paris"), "{}", stdout(&output));
    assert!(stderr(&output).contains("tok/s"), "{}", stderr(&output));

    let file = temporary("prompt.txt", prompt);
    let options = ["--prompt-file", &file, "--json", "--logprobs", "3"];
    let answer = json(&run(&[&args[..], &options[..]].concat()));
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 6);
    assert_eq!(
        answer["text"].as_str().unwrap().trim_end(),
        stdout(&output).trim_end()
    );
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["prompt_tokens"].as_array().unwrap().len(), 5);
    for (token, top) in tokens.iter().zip(answer["logprobs"].as_array().unwrap()) {
        assert_eq!(top.as_array().unwrap().len(), 3);
        assert_eq!(&top[0][0], token, "greedy draws the most probable");
        assert!(top[0][1].as_f64() <= Some(0.0));
    }
}

#[test]
fn drafts_change_the_speed_and_not_the_answer() {
    let Some(model) = real() else { return };
    let prompt = "one two three four one two three four one two three four one";
    let args = [
        "run",
        "--raw",
        "--model",
        &model,
        "--max-tokens",
        "16",
        "--backend",
        "host",
        "--prompt",
        prompt,
    ];
    let plain = json(&run(&[&args[..], &["--json"]].concat()));
    assert_eq!(plain["draft_tokens"], 0);
    // How many drafts are worth it depends on the time that steps take here.
    for drafts in [
        &["--draft-ngram", "--draft-max", "4"][..],
        &["--draft-model", &model],
    ] {
        let drafted = json(&run(&[&args[..], drafts, &["--json"]].concat()));
        for field in ["tokens", "token_logprobs", "text", "finish_reason"] {
            assert_eq!(drafted[field], plain[field], "{field}");
        }
        let [accepted, all] = ["accepted_draft_tokens", "draft_tokens"]
            .map(|field| drafted[field].as_u64().expect(field));
        assert!(accepted <= all, "{drafted}");
    }
    let little = run(&[&args[..], &["--memory-budget=230", "--draft-model", &model]].concat());
    assert_fails(&little, 1, &format!("{model}: the CPU: the weights need "));
    assert_fails(&little, 1, " are left in the budget");
}

#[test]
fn a_draft_head_guesses_answers() {
    let model = model_that_answers("guessed.gguf", "a", None);
    let head = head_of_answers("guesses.gguf");
    let args = [
        "run",
        "--raw",
        "--model",
        &model,
        "--json",
        "-n30",
        "--backend",
        "host",
        "--prompt",
        "a",
    ];
    let plain = json(&run(&args));
    let drafted = json(&run(&[&args[..], &["--draft-head", &head]].concat()));
    for field in ["tokens", "token_logprobs", "text", "finish_reason"] {
        assert_eq!(drafted[field], plain[field], "{field}");
    }
    // Guesses are right; how many are worth it depends on the time that steps take here.
    assert_eq!(drafted["accepted_draft_tokens"], drafted["draft_tokens"]);
    let refused = run(&[&args[..], &["--draft-head", &model]].concat());
    assert_fails(
        &refused,
        1,
        &format!("{model}: architecture 'llama' is no draft head"),
    );
}

#[test]
fn run_answers_lines_of_requests_in_order() {
    let Some(model) = real() else { return };
    let requests = temporary(
        "requests.jsonl",
        concat!(
            r#"{"id": 7, "prompt": "One, two,", "raw": true, "max_tokens": 3}"#,
            "\n\n",
            r#"{"id": "b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}"#,
            "\n",
            r#"{"tokens": [1, 2, 3], "max_tokens": 1, "temperature": 0.7, "seed": 3, "logprobs": 2}"#,
            "\n",
            r#"{"prompt": "x", "unknown": 1}"#,
            "\n",
        ),
    );
    let output = run(&[
        "run",
        "--model",
        &model,
        "--backend",
        "host",
        "--requests",
        &requests,
    ]);
    assert_fails(&output, 1, "1 of 4 requests failed");
    let text = stdout(&output);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["id"], 7);
    assert_eq!(lines[0]["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(lines[1]["id"], "b");
    assert_eq!(lines[2]["prompt_tokens"], serde_json::json!([1, 2, 3]));
    assert_eq!(lines[2]["logprobs"][0].as_array().unwrap().len(), 2);
    assert!(lines[3]["error"].as_str().unwrap().contains("unknown"));
}

fn chat(model: &str, input: &str) -> String {
    let mut child = worker(&["chat", "--model", model, "--backend", "host", "-n", "6"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn chat_remembers_until_cleared() {
    let Some(model) = real() else { return };
    let (name, question) = ("My name is Ada.", "What is my name?");
    let asked = chat(&model, &format!("{question}\n/exit\nnever read\n"));
    let both = chat(&model, &format!("{name}\n{question}\n"));
    let cleared = chat(&model, &format!("{name}\n/clear\n\n{question}\n"));
    let named = cleared
        .strip_suffix(&asked)
        .expect("the last answer is that of a fresh chat");
    let remembered = both
        .strip_prefix(named)
        .expect("the first answer is the same");
    assert_ne!(remembered, asked);
}

#[test]
fn tokens_round_trip() {
    let Some(model) = real() else { return };
    let text = "Hello, wörld!  日本\n";
    let file = temporary("text.txt", text);
    let tokens = json(&run(&[
        "tokenize", "--model", &model, "--file", &file, "--json",
    ]));
    let ids: Vec<String> = tokens["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    assert!(ids.len() > 5);
    let arguments: Vec<&str> = ["detokenize", "--model", &model]
        .into_iter()
        .chain(ids.iter().map(String::as_str))
        .collect();
    assert_eq!(stdout(&run(&arguments)), text);
}

#[test]
fn template_renders_messages() {
    let Some(model) = real() else { return };
    let request = temporary(
        "template.json",
        r#"{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}"#,
    );
    let output = run(&["template", "--model", &model, "--request", &request]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        "{text}"
    );
    let line = std::fs::read_to_string(&request)
        .unwrap()
        .replace('\n', " ");
    let requests = temporary("template.jsonl", &line);
    let answer = json(&run(&[
        "template",
        "--model",
        &model,
        "--requests",
        &requests,
    ]));
    assert_eq!(answer["text"], text);
}

/// A control token.
const MARKER: &str = "<|im_start|>";

/// A file with only a vocabulary of printable ASCII, one merge and a control token, and a chat template if one is
/// given.
fn vocabulary_only(name: &str, template: Option<&str>) -> String {
    let tokens = ('!'..='~').chain(['Ġ']).map(String::from);
    let tokens: Vec<String> = tokens.chain(["yz", MARKER].map(String::from)).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let types = tokens
        .iter()
        .map(|&token| if token == MARKER { 3i32 } else { 1 });
    let types: Vec<u8> = types.flat_map(i32::to_le_bytes).collect();
    let mut file = GgufFile::new()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .array("tokenizer.ggml.token_type", 5, tokens.len() as u64, &types)
        .strings("tokenizer.ggml.merges", &["y z"]);
    if let Some(template) = template {
        file = file.string("tokenizer.chat_template", template);
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, file.bytes()).expect("a temporary file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn vocabulary_alone_is_enough_to_tokenize_and_to_render() {
    let model = vocabulary_only("vocabulary.gguf", Some("{{ messages[0].content }}!"));
    let tokens = json(&run(&["tokenize", "--model", &model, "--json", "a b"]));
    assert_eq!(tokens["tokens"], serde_json::json!([64, 94, 65]));
    assert_eq!(
        stdout(&run(&["detokenize", "--model", &model, "64", "94", "65"])),
        "a b"
    );
    let request = temporary(
        "vocabulary.json",
        r#"{"messages": [{"content": "Hi"}], "x": 1}"#,
    );
    let output = run(&["template", "--model", &model, "--request", &request]);
    assert_eq!(stdout(&output), "Hi!");
    let run_it = run(&["run", "--raw", "--backend", "host", "--model", &model, "Hi"]);
    assert_fails(&run_it, 1, "");
}

#[test]
fn control_tokens_are_parsed_when_asked_for() {
    let model = vocabulary_only("control.gguf", None);
    let list = temporary("ids.json", "[64, 94, 65]");
    let args = ["detokenize", "--model", &model, "--file", &list, "--json"];
    assert_eq!(json(&run(&args))["text"], "a b");

    let marker = temporary("marker.txt", MARKER);
    let args = ["tokenize", "--model", &model, "--file", &marker, "--json"];
    let plain = json(&run(&args));
    let special = json(&run(&[&args[..], &["--parse-special"]].concat()));
    assert_eq!(plain["tokens"].as_array().unwrap().len(), MARKER.len());
    assert_eq!(special["tokens"], serde_json::json!([96]));

    let requests = temporary(
        "tokenize.jsonl",
        "{\"text\": \"<|im_start|>\", \"parse_special\": true}\n{\"text\": \"a\"}\n",
    );
    let output = run(&["tokenize", "--model", &model, "--requests", &requests]);
    let first = stdout(&output).lines().next().unwrap().to_owned();
    assert_eq!(
        serde_json::from_str::<Value>(&first).unwrap()["tokens"],
        special["tokens"]
    );
    assert_fails(
        &run(&["detokenize", "--model", &model, "9999999"]),
        1,
        "9999999",
    );
}

#[test]
fn missing_and_failing_templates_name_the_line_and_a_hint() {
    let missing = vocabulary_only("no-template.gguf", None);
    let output = run(&["run", "--backend", "host", "--model", &missing, "Hi"]);
    assert_fails(&output, 1, "hint: run --raw");
    let failing = vocabulary_only("failing.gguf", Some("one\ntwo {{ 1 / 0 }}"));
    let output = run(&["run", "--backend", "host", "--model", &failing, "Hi"]);
    assert_fails(&output, 1, "line 2");
    let request = temporary("bad-request.json", r#"{"messages": "Hi"}"#);
    let output = run(&["template", "--model", &failing, "--request", &request]);
    assert_fails(&output, 1, "messages");
}

#[test]
#[cfg(unix)]
fn escape_sequences_of_an_answer_reach_a_pipe_and_no_terminal() {
    let model = model_that_answers("answers.gguf", "\u{1b}]0;t\u{7}", Some(1));
    let args = [
        "run",
        "--raw",
        "--backend",
        "host",
        "-n",
        "2",
        "--temperature",
        "0",
        "--model",
        &model,
        "a",
    ];
    let piped = run(&args);
    assert!(piped.status.success(), "{}", stderr(&piped));
    assert_eq!(stdout(&piped).trim_end(), "\u{1b}]0;t\u{7}\u{1b}]0;t\u{7}");

    // `script` gives its command a terminal of its own.
    let command = format!(
        "{} {} 2>/dev/null",
        env!("CARGO_BIN_EXE_worker-orcd"),
        args.join(" ")
    );
    let shown = Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script, of bsdutils");
    assert!(shown.status.success(), "{}", stdout(&shown));
    assert_eq!(
        stdout(&shown).trim_end(),
        "\u{241b}]0;t\u{2407}\u{241b}]0;t\u{2407}"
    );
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_an_answer_cleanly() {
    let Some(model) = real() else { return };
    let mut child = worker(&[
        "run",
        "--model",
        &model,
        "--raw",
        "--backend",
        "host",
        "--ignore-end",
    ])
    .args(["--context", "4096", "--prompt", "Count: 1 2 3"])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // The first byte shows that the answer has started.
    let mut first = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("tok/s") && stderr(&output).contains("interrupted"));
}
