//! The commands of the compute platform: memory, kernels, runs on arrays.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use support::run;

mod support;

fn stdout(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&run(args))).expect("JSON")
}

#[track_caller]
fn assert_fails(args: &[&str], status: i32, part: &str) {
    support::assert_fails(&run(args), status, part);
}

/// A separate folder for each test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// An array as NumPy writes it.
fn npy(path: &Path, descr: &str, shape: &str, bytes: &[u8]) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(format!("{header:<117}\n").as_bytes());
    file.extend(bytes);
    std::fs::write(path, file).expect("a file");
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Header and elements of a file that the worker wrote.
fn read_npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("a file");
    let length = usize::from(bytes[8]) + 256 * usize::from(bytes[9]);
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).expect("ASCII");
    (header.trim_end().to_owned(), bytes[10 + length..].to_vec())
}

#[test]
fn vram_shows_checks_and_finds_no_leak() {
    let shown = json(&["vram", "--backend", "host", "--json"]);
    assert_eq!(shown["backend"], "host");
    assert!(shown["total_bytes"].as_u64() > shown["used_bytes"].as_u64());

    let checked = json(&["vram", "--backend", "host", "check", "--json"]);
    assert_eq!(checked["checked_count"], 5);
    assert_eq!(checked["nonresident_count"], 0);

    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let model = root.join("cuda/tests/data/models/llama.gguf");
    let args = [
        "vram",
        "--backend",
        "host",
        "leaks",
        "--model",
        text(&model),
        "--json",
    ];
    let leaks = json(&args);
    assert_eq!(leaks["leaks"], Value::Array(Vec::new()));
    assert!(leaks["allocations"].as_u64() > Some(2));
    let line = stdout(&run(&["vram", "--backend", "host", "leaks"]));
    assert!(line.ends_with(", 0 leaked\n"), "{line}");
}

/// Digests by the reference implementation (the PyPI package blake3 1.0.5) of bytes i % 251.
#[test]
fn vram_digest_is_blake3() {
    let folder = folder("digest");
    let cases = [
        (
            0usize,
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        ),
        (
            1025,
            "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
        ),
        (
            3 << 20,
            "c9e03344ea01f416e5fd2c4aa87b32f2b13e731d034be31898de3ce251926b1c",
        ),
        (
            (64 << 20) + 5,
            "0db2d59d1b8c5c6536dadbab812c44d9ea72d6ffd946db202e6f890817782ad8",
        ),
    ];
    for (bytes, digest) in cases {
        let path = folder.join(format!("{bytes}"));
        let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, data).expect("a file");
        let line = stdout(&run(&["vram", "--backend", "host", "digest", text(&path)]));
        assert_eq!(
            line,
            format!("{digest}  {}\n", text(&path)),
            "{bytes} bytes"
        );
        let reported = json(&["vram", "--backend", "host", "digest", text(&path), "--json"]);
        assert_eq!(
            (&reported["blake3"], &reported["bytes"]),
            (&digest.into(), &bytes.into())
        );
        std::fs::remove_file(&path).expect("our file");
    }
    assert_fails(
        &["vram", "--backend", "host", "digest", "/nowhere/x"],
        1,
        "/nowhere/x: No such",
    );
}

#[test]
fn kernels_lists_the_catalogue_and_manifests() {
    let list = json(&["kernels", "--json"]);
    let kernels = list["kernels"].as_array().expect("a list");
    let softmax = kernels
        .iter()
        .find(|kernel| kernel["name"] == "softmax")
        .expect("softmax");
    let x = &softmax["parameters"][0];
    assert_eq!((&x["name"], &x["role"]), (&"x".into(), &"in".into()));
    assert_eq!(x["shape"], serde_json::json!(["rows", "width"]));
    assert_eq!(softmax["types"].as_array().map(Vec::len), Some(3));
    let listing = stdout(&run(&["kernels"]));
    assert_eq!(listing.lines().count(), kernels.len());
    let call = "softmax(in x[rows, width], out y[rows, width], rows: i64, width: i64)";
    assert!(listing.contains(call), "{listing}");
    let pool = "avg_pool2d(in x: f32[batch, channels, h, w], out y: f32[batch, channels, oh, ow], batch: i64";
    assert!(listing.contains(pool), "{listing}");
    let attention = "out weights: f32[batch, heads, seq, seq]";
    assert!(listing.contains(attention), "{listing}");

    let path = folder("manifest").join("m.json");
    let manifest = r#"{"manifest": 1, "kernels": [{"name": "tensor_add", "builtin": "tensor_add"},
      {"name": "k", "host": "h", "id": 7, "params": [
        {"name": "n", "kind": "scalar", "dtype": "i32", "max": 9}]}]}"#;
    std::fs::write(&path, manifest).expect("a file");
    let list = json(&["kernels", "--manifest", text(&path), "--json"]);
    assert_eq!(list["kernels"][0]["id"], 2);
    assert_eq!(list["kernels"][1]["signature"], "i32{..9};");
    assert_eq!(
        stdout(&run(&["kernels", "--manifest", text(&path)]))
            .lines()
            .count(),
        2
    );
    std::fs::write(&path, manifest.replace("\"max\": 9", "\n\"max\": \"m\"")).expect("a file");
    assert_fails(
        &["kernels", "--manifest", text(&path)],
        1,
        "line 4: kernels[1].params[0].max: 'm': 'm' is no integer parameter",
    );
    assert_fails(
        &["kernels", "--manifest", "/nowhere"],
        1,
        "/nowhere: No such file",
    );
}

#[test]
fn compute_run_takes_sizes_from_shapes() {
    let folder = folder("run");
    let (a, b, c) = (
        folder.join("a.npy"),
        folder.join("b.npy"),
        folder.join("c.npy"),
    );
    npy(&a, "<f4", "(2, 3)", &f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    npy(&b, "<f4", "(3, 2)", &f32s(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    let (a, b, out) = (text(&a), text(&b), text(&c));
    let host = ["--backend", "host", "--json"];
    let product = [
        "compute",
        "run",
        "matrix_multiply",
        "--in",
        a,
        "--in",
        b,
        "--out",
        out,
    ];
    let reported = json(&[&product[..], &host].concat());
    assert_eq!(
        (&reported["backend"], &reported["elements"]),
        (&"host".into(), &4.into())
    );
    assert_eq!(reported["gpu_executed"], false);
    assert_eq!(reported["is_first_call"], true);
    let (header, bytes) = read_npy(&c);
    assert!(
        header.contains("'descr': '<f4', 'fortran_order': False, 'shape': (2,2,)"),
        "{header}"
    );
    assert_eq!(bytes, f32s(&[4.0, 5.0, 10.0, 11.0]));
    let line = stdout(&run(&[&product[..], &host[..2]].concat()));
    assert!(line.ends_with(" GB/s (first call, cold)\n"), "{line}");

    json(
        &[
            &[
                "compute",
                "run",
                "vector_add",
                "--in",
                a,
                "--in",
                b,
                "--out",
                out,
            ][..],
            &host,
        ]
        .concat(),
    );
    assert_eq!(read_npy(&c).1, f32s(&[2.0, 2.0, 3.0, 5.0, 6.0, 7.0]));

    let gamma = folder.join("gamma.npy");
    npy(&gamma, "<f4", "(3,)", &f32s(&[2.0, 2.0, 2.0]));
    let norm = [
        "compute",
        "run",
        "rms_norm",
        "--in",
        a,
        "--in",
        text(&gamma),
        "--out",
        out,
    ];
    json(&[&norm[..], &["--arg", "eps=0"], &host].concat());
    let scale = 2.0 / (14.0f32 / 3.0).sqrt();
    let (header, bytes) = read_npy(&c);
    assert!(header.contains("(2,3,)"), "{header}");
    assert!((f32::from_le_bytes(bytes[..4].try_into().unwrap()) - scale).abs() < 1e-6);
}

#[test]
fn compute_run_reports_what_is_missing() {
    let folder = folder("missing");
    let (a, out) = (folder.join("a.npy"), folder.join("c.npy"));
    npy(&a, "<f4", "(4,)", &f32s(&[1.0, 2.0, 3.0, 4.0]));
    let (a, out) = (text(&a), text(&out));
    let fails = |args: &[&str], status, part: &str| {
        assert_fails(
            &[&["compute", "run", "--backend", "host"][..], args].concat(),
            status,
            part,
        );
    };
    fails(&["dance"], 1, "no kernel 'dance'");
    fails(
        &["vector_add", "--in", a],
        2,
        "'vector_add' reads 2 arrays, 1 given with --in",
    );
    fails(
        &["vector_scale", "--in", a, "--out", out],
        2,
        "'alpha' is unknown; pass --arg alpha=NUMBER",
    );
    fails(
        &["vector_scale", "--in", a, "--arg", "alpha=2"],
        2,
        "more results than --out files",
    );
    fails(
        &["relu", "--in", a, "--arg", "m=3"],
        2,
        "'m=3': 'relu' takes x, y, n",
    );
    fails(
        &["relu", "--in", a, "--type", "f16"],
        1,
        "'x' has type f16, the file has type f32",
    );
    fails(
        &["relu", "--in", a, "--out", out, "--arg", "n=5"],
        1,
        "argument 0 ('x') has 16 bytes",
    );
    fails(&["relu", "--in", "/nowhere"], 1, "/nowhere: No such file");
    fails(
        &[
            "uniform", "--out", out, "--arg", "low=0", "--arg", "high=1", "--arg", "seed=1",
            "--arg", "offset=0",
        ],
        2,
        "the size 'n' of 'y' is unknown",
    );
}

#[test]
fn compile_and_occupancy_report_what_they_need() {
    let path = folder("compile").join("x.cu");
    std::fs::write(&path, "extern \"C\" __global__ void x(int* p) { *p = 1; }").expect("a file");
    let file = text(&path);
    assert_fails(
        &["compute", "occupancy", file, "x", "--backend", "host"],
        1,
        "'x': the CPU backend runs no device code",
    );
    let Some(folder) = std::env::var_os("WCUDA_TEST_NVRTC") else {
        println!("skipped: WCUDA_TEST_NVRTC names no NVRTC");
        return;
    };
    let nvrtc = PathBuf::from(folder);
    let out = path.with_extension("cubin");
    let args = [
        "compute",
        "compile",
        file,
        "--arch",
        "sm_90a",
        "--nvrtc",
        text(&nvrtc),
    ];
    let reported = json(&[&args[..], &["--out", text(&out), "--json"]].concat());
    assert_eq!(
        (&reported["kind"], &reported["architecture"]),
        (&"cubin".into(), &"sm_90a".into())
    );
    assert_eq!(std::fs::read(&out).expect("the code")[..4], *b"\x7fELF");
    std::fs::write(&path, "int x").expect("a file");
    assert_fails(&args, 1, "x.cu(1): error");
}
