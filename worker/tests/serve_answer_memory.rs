//! Log probabilities of whole answers take little more memory than their text.
//!
//! The allocator of this program counts, so what is measured is the same on every machine.

use serde_json::json;

use http::Served;

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/peak_memory.rs"]
mod peak_memory;

const TOKENS: usize = 4000;
/// Of a token with one alternative: in the service, in the answer, and as text here and at the client.
const MOST_BYTES: usize = 1500;

#[test]
fn log_probabilities_take_little_more_memory_than_their_text() {
    let served = Served::with(|setup| setup.endless());
    let chat = json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {}", "x".repeat(TOKENS)) }],
        "logprobs": true,
        "top_logprobs": 1,
    });
    let text = json!({
        "model": "scripted",
        "prompt": format!("say {}", "x".repeat(TOKENS)),
        "max_tokens": TOKENS,
        "logprobs": 1,
    });
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        let before = peak_memory::begin_peak();

        let reply = served.post(path, &body);

        let bytes = peak_memory::peak() - before;
        let usage = &reply.ok()["usage"];
        assert_eq!(usage["completion_tokens"], TOKENS);
        println!("{path}: {bytes} bytes");
        assert!(bytes < TOKENS * MOST_BYTES, "{path}: {bytes} bytes");
    }
}
