//! `worker-orcd zctl exec`, `record` and `replay`: the example guests as shared objects.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use support::{assert_fails, run, stderr, worker};

mod support;

const SCHEDULES: [&str; 5] = [
    "all-at-once",
    "one-byte",
    "powers-of-two",
    "crlf-adversary",
    "seeded-random:9",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
}

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The path of a guest compiled for a shape, with the numbering that was published with it. 0: a guest of these
/// tests.
fn compile(source: &Path, name: &str, shape: u8) -> String {
    let path = temporary(name).display().to_string();
    let output = Command::new("cc")
        .args([
            "-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", &path,
        ])
        .arg(format!("-DWCUDA_CLOAK_SHAPE={shape}"))
        .arg(format!("-DWCUDA_CLOAK_HANDLES={}", shape - 1))
        .arg("-I")
        .arg(root().join("cuda/include"))
        .arg(source)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

/// An example guest; each is compiled once.
fn guest(name: &str, shape: u8) -> String {
    static COMPILED: OnceLock<Vec<String>> = OnceLock::new();
    const GUESTS: [(&str, u8); 4] = [
        ("echo", 1),
        ("vector_add", 1),
        ("vector_add", 2),
        ("vector_add", 3),
    ];
    let compiled = COMPILED.get_or_init(|| {
        let compile = |(name, shape): (&str, u8)| {
            let source = root().join(format!("examples/guest/{name}.c"));
            compile(&source, &format!("{name}_{shape}.so"), shape)
        };
        GUESTS.into_iter().map(compile).collect()
    });
    let index = GUESTS.iter().position(|guest| *guest == (name, shape));
    compiled[index.expect("is compiled")].clone()
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = worker(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    // A guest that traps reads no more.
    let _ = child.stdin.take().expect("is piped").write_all(input);
    child.wait_with_output().expect("is our child")
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Two vectors of `n`, and their sum.
fn vectors(n: u16) -> (Vec<u8>, Vec<u8>) {
    let a: Vec<f32> = (0..n).map(|i| f32::from(i) * 0.5).collect();
    let b: Vec<f32> = (0..n).map(|i| 1000.0 - f32::from(i)).collect();
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    (floats(&[a, b].concat()), floats(&sums))
}

#[test]
fn guests_give_equal_output_under_every_schedule_and_shape() {
    let text = b"one\r\ntwo\n\rthree and a long line without an end".repeat(40);
    for schedule in SCHEDULES {
        let echo = guest("echo", 1);
        let args = [
            "zctl",
            "exec",
            &echo,
            "--shape",
            "1",
            "--chunks",
            schedule,
            "--no-kernels",
        ];
        let done = with_input(&args, &text);
        assert!(done.status.success(), "{}", stderr(&done));
        assert_eq!(done.stdout, text, "{schedule}");

        for (shape, handles) in [(1, "pack"), (2, "abi"), (3, "guide")] {
            let (input, sums) = vectors(100);
            let path = guest("vector_add", shape);
            let shape = shape.to_string();
            let options = [
                "--shape",
                &shape,
                "--handles",
                handles,
                "--chunks",
                schedule,
            ];
            let args = [&["zctl", "exec", &path, "--backend", "host"], &options[..]].concat();
            let done = with_input(&args, &input);
            assert!(done.status.success(), "{}", stderr(&done));
            assert_eq!(done.stdout, sums, "{schedule}, {shape}");
        }
    }
}

#[test]
fn traps_are_reported_in_words() {
    let path = guest("vector_add", 2);
    let exec = ["zctl", "exec", &path, "--backend", "host"];
    assert_fails(&with_input(&exec, b"1234"), 1, "trap 1: out of bounds");
    let without = ["zctl", "exec", &path, "--no-kernels"];
    assert_fails(
        &with_input(&without, &[0; 8]),
        1,
        "trap 4: a host function failed",
    );
    // The handle of ctl is another.
    let other = [&exec[..], &["--handles", "pack"]].concat();
    assert_fails(&with_input(&other, &[0; 8]), 1, "trap 4");
    // What the kernel's refusal said is in the log.
    let refused = with_input(&[&exec[..], &["--allow", "1"]].concat(), &[0; 8]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("vector_add: kernel is not allowed\n"));
}

#[test]
fn mistakes_are_reported() {
    assert_fails(
        &run(&["zctl", "exec", "no_such_guest.so", "--no-kernels"]),
        1,
        "no_such_guest.so",
    );
    let source = temporary("no_guest.c");
    std::fs::write(&source, "int other;\n").expect("a temporary file");
    let path = compile(&source, "no_guest.so", 2);
    assert_fails(
        &run(&["zctl", "exec", &path, "--no-kernels"]),
        1,
        "lembeh_handle",
    );
    for wrong in [
        ["--shape", "4"],
        ["--handles", "own"],
        ["--chunks", "two-bytes"],
    ] {
        let output = run(&[&["zctl", "exec", &path], &wrong[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

/// Records vector_add on the host. Its transcript, and the path of it.
fn record(name: &str) -> (String, String) {
    let path = temporary(name).display().to_string();
    let (input, sums) = vectors(40);
    let vector_add = guest("vector_add", 2);
    let args = [
        "zctl",
        "record",
        &vector_add,
        "--out",
        &path,
        "--backend",
        "host",
    ];
    let done = with_input(&args, &input);
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(done.stdout, sums);
    (std::fs::read_to_string(&path).expect("is written"), path)
}

fn replay(path: &str) -> Output {
    run(&["zctl", "replay", path, &guest("vector_add", 2)])
}

#[test]
fn a_recorded_guest_replays() {
    let (text, path) = record("recorded.jsonl");
    assert_eq!(record("again.jsonl").0, text);
    let done = replay(&path);
    assert!(done.status.success(), "{}", stderr(&done));
    let calls = text.lines().filter(|line| !line.contains("\"mem_")).count() - 2;
    let said = String::from_utf8(done.stdout).expect("UTF-8");
    assert_eq!(said, format!("{calls} calls are as recorded\n"));
    let json = run(&["zctl", "replay", &path, &guest("vector_add", 2), "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["calls"], calls);
}

#[test]
fn another_guest_diverges_with_line_byte_and_both_values() {
    let (_, path) = record("other.jsonl");
    let output = run(&[
        "zctl",
        "replay",
        &path,
        &guest("echo", 1),
        "--shape",
        "1",
        "--json",
    ]);
    assert_fails(
        &output,
        1,
        "line 1, byte 0: expected 1048576 bytes of memory, found 4096",
    );
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&json["line"], &json["byte"]),
        (&Value::from(1), &Value::from(0))
    );
    assert_eq!(json["found"], "4096 bytes of memory");
    std::fs::write(temporary("bytes.jsonl"), b"\n\xff").expect("a temporary file");
    let bytes = temporary("bytes.jsonl").display().to_string();
    assert_fails(&replay(&bytes), 1, "line 2");
    assert_fails(&replay("/no/such.jsonl"), 1, "/no/such.jsonl");
}

/// Recorded on an H200, with input of 320 bytes in pieces of seeded-random:5.
const H200: &str = include_str!("data/vector_add_h200.jsonl");

#[test]
fn a_transcript_of_an_h200_replays_here() {
    assert!(H200.contains(r#""backend":"cuda""#));
    let path = temporary("h200.jsonl").display().to_string();
    std::fs::write(&path, H200).expect("a temporary file");
    let done = replay(&path);
    assert!(done.status.success(), "{}", stderr(&done));
}

#[test]
fn a_changed_transcript_ends_with_status_1() {
    let lines: Vec<&str> = H200.split_inclusive('\n').collect();
    let path = temporary("mutant.jsonl").display().to_string();
    let check = |lines: &[&str], what: &str| {
        std::fs::write(&path, lines.concat()).expect("a temporary file");
        let output = replay(&path);
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert_fails(&output, 1, "expected");
    };
    for index in 0..lines.len() {
        let (before, after) = lines.split_at(index);
        check(&[before, &after[1..]].concat(), "left out");
        check(&[before, &after[..1], after].concat(), "doubled");
        if after.len() > 1 {
            check(
                &[before, &[after[1], after[0]], &after[2..]].concat(),
                "swapped",
            );
        }
        for key in ["\"i\":", "\"ret\":", "\"crc\":\"", "\"b64\":\""] {
            let Some(at) = after[0].find(key) else {
                continue;
            };
            let mut line = after[0].to_owned();
            let value = at + key.len();
            let other = if &line[value..=value] == "7" {
                "8"
            } else {
                "7"
            };
            line.replace_range(value..=value, other);
            check(&[before, &[&line], &after[1..]].concat(), &line);
        }
    }
}

#[test]
fn a_guest_that_ignores_failures_ends_at_the_divergence() {
    let source = temporary("endless.c");
    let text = "#include \"worker_cuda_cloak.h\"\n\
        static uint8_t memory[64];\n\
        uint32_t zprog_heap_base_value(void) { return 0; }\n\
        int lembeh_handle(int32_t req, int32_t res, lembeh_in in, lembeh_out out, lembeh_end end,\n\
        lembeh_log log, lembeh_ctl ctl, void* ctx, const struct zprog_sys* sys) {\n\
        (void)req, (void)in, (void)end, (void)log, (void)ctl, (void)sys;\n\
        for (;;) out(ctx, res, memory, 64, 0, 1);\n}\n";
    std::fs::write(&source, text).expect("a temporary file");
    let path = compile(&source, "endless.so", 2);
    let transcript = temporary("endless.jsonl").display().to_string();
    let head = r#"{"k":"zctl","v":1,"manifest":"0000000000000000000000000000000000000000000000000000000000000000","backend":"host","mem_cap":64}"#;
    let write = r#"{"k":"write","i":0,"h":1,"ret":1,"b64":"AA=="}"#;
    std::fs::write(&transcript, format!("{head}\n{write}\n")).expect("a temporary file");
    let output = run(&["zctl", "replay", &transcript, &path]);
    assert_fails(
        &output,
        1,
        "line 3, byte 0: expected the end of the guest, found write",
    );
}
