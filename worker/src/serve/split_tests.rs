use super::*;

/// What a splitter reports for the parts of a text, joined.
fn split(format: Option<Format>, begun: Option<&'static str>, parts: &[&str]) -> Vec<Piece> {
    let mut splitter = Splitter::new(format, begun);
    let mut pieces = Vec::new();
    for part in parts {
        splitter.push(part, &mut pieces);
    }
    splitter.finish(&mut pieces);
    assert_eq!(
        splitter.has_calls(),
        pieces.iter().any(|piece| matches!(piece, Piece::Call(_)))
    );
    pieces
}

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.into())
}

fn called(name: &str, arguments: &str) -> Piece {
    Piece::Call(Call {
        name: name.into(),
        arguments: arguments.into(),
    })
}

#[test]
fn transcripts_are_split_alike_however_they_are_cut() {
    use Format::{Hermes, Json, Llama3, Mistral};
    let weather = || called("weather", r#"{"city":"Köln"}"#);
    let empty = || called("now", "{}");
    let cases: Vec<(Option<Format>, &str, Vec<Piece>)> = vec![
        (None, "", vec![]),
        (
            None,
            "  plain <tool_call> ",
            vec![text("  plain <tool_call> ")],
        ),
        (
            None,
            "<think>\n why \n</think>\n\nso",
            vec![reasoning("why"), text("so")],
        ),
        (None, "<think></think>so", vec![text("so")]),
        (None, "<think>cut off ", vec![reasoning("cut off")]),
        (None, "a <think>b</think>", vec![text("a <think>b</think>")]),
        (None, "<thin", vec![text("<thin")]),
        (
            None,
            "<thinking>a</think>b</thinking>c",
            vec![reasoning("a</think>b"), text("c")],
        ),
        (
            None,
            "[THINK]ä</THINK[/THINK]ö",
            vec![reasoning("ä</THINK"), text("ö")],
        ),
        (
            Some(Hermes),
            "<think>x</think>I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n<tool_call>{\"name\":\"now\"}</tool_call>\n",
            vec![reasoning("x"), text("I look."), weather(), empty()],
        ),
        (
            Some(Hermes),
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\":\\\"Köln\\\"}\"}",
            vec![weather()],
        ),
        (
            Some(Hermes),
            "a <tool_call>{\"name\": 1}</tool_call> b",
            vec![text("a <tool_call>{\"name\": 1}</tool_call> b")],
        ),
        (
            Some(Hermes),
            "a <tool_call>{\"na",
            vec![text("a <tool_call>{\"na")],
        ),
        (Some(Hermes), "a <tool_cal ", vec![text("a <tool_cal ")]),
        (
            Some(Hermes),
            "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> and <b>",
            vec![empty(), text(" and <b>")],
        ),
        (
            Some(Llama3),
            " {\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}}; {\"name\":\"now\",\"parameters\":{}}",
            vec![weather(), empty()],
        ),
        (
            Some(Llama3),
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}",
            vec![empty()],
        ),
        (
            Some(Llama3),
            "<|python_tag|>print(1)",
            vec![text("<|python_tag|>print(1)")],
        ),
        (
            Some(Llama3),
            " {\"a\": \"}\\\"\"} is JSON",
            vec![text(" {\"a\": \"}\\\"\"} is JSON")],
        ),
        (Some(Llama3), "{ not closed", vec![text("{ not closed")]),
        (
            Some(Mistral),
            "Look.[TOOL_CALLS] [{\"name\":\"weather\",\"arguments\":{\"city\":\"Köln\"}}, {\"name\":\"now\",\"arguments\":{}}]",
            vec![text("Look."), weather(), empty()],
        ),
        (
            Some(Mistral),
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Köln\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}",
            vec![weather(), empty()],
        ),
        (
            Some(Mistral),
            "[TOOL_CALLS]weather",
            vec![text("[TOOL_CALLS]weather")],
        ),
        (
            Some(Mistral),
            "[TOOL_CALLS] []",
            vec![text("[TOOL_CALLS] []")],
        ),
        (
            Some(Json),
            "[{\"name\":\"weather\",\"arguments\":{\"city\":\"Köln\"}},{\"name\":\"now\"}]",
            vec![weather(), empty()],
        ),
        (
            Some(Json),
            "{\"function\":{\"name\":\"now\",\"arguments\":\"{}\"}} ",
            vec![empty()],
        ),
        (
            Some(Json),
            "{\"name\":\"now\",\"arguments\":[]}",
            vec![text("{\"name\":\"now\",\"arguments\":[]}")],
        ),
        (Some(Json), "no call {", vec![text("no call {")]),
    ];
    for (format, written, pieces) in &cases {
        assert_eq!(&split(*format, None, &[written]), pieces, "{written}");
        for (at, _) in written.char_indices() {
            let (first, second) = written.split_at(at);
            assert_eq!(
                &split(*format, None, &[first, second]),
                pieces,
                "{first} | {second}"
            );
        }
        let each: Vec<_> = written.split_inclusive(|_| true).collect();
        assert_eq!(
            &split(*format, None, &each),
            pieces,
            "{written}, each character"
        );
    }
}

#[test]
fn reasoning_may_begin_in_the_prompt() {
    assert_eq!(begun_thinking("<|assistant|><think>\n"), Some("</think>"));
    assert_eq!(begun_thinking("<think>a</think>"), None);
    let pieces = split(None, begun_thinking("<think>"), &["a<", "/think>", " b"]);
    assert_eq!(pieces, [reasoning("a"), text("b")]);
}

#[test]
fn an_unfinished_call_is_not_searched_again_for_each_token() {
    let mut splitter = Splitter::new(Some(Format::Hermes), None);
    let mut pieces = Vec::new();
    splitter.push(
        "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":\"",
        &mut pieces,
    );
    for _ in 0..200_000 {
        splitter.push("xxxx", &mut pieces);
    }
    splitter.push("\"}}</tool_call>", &mut pieces);
    assert!(matches!(&pieces[..], [Piece::Call(call)] if call.arguments.len() == 800_008));
}

#[test]
fn formats_are_recognized_by_their_templates() {
    for (source, format) in [
        ("{{ '<tool_call>' }}", Format::Hermes),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", Format::Mistral),
        ("<|python_tag|>", Format::Llama3),
        ("{{ messages }}", Format::Json),
    ] {
        assert_eq!(Format::of_template(source), format);
    }
}
