//! Kernels described in a file: what a manifest may say, and what a mistake in it is answered with.
#![cfg(feature = "manifest")]

use processor_time::limited;
use proptest::prelude::*;
use worker_cuda::manifest::ParamKind;
use worker_cuda::{CudaContext, ErrorKind, GpuArg, GpuCompute, HostFunctions, Manifest};

#[path = "support/processor_time.rs"]
mod processor_time;

const SAMPLE: &str = r#"{
  "manifest": 1,
  "modules": [
    { "name": "scale", "source": "template <class T> __global__ void scale(T* x, T by, int n) {}",
      "arch": "sm_90a", "options": { "standard": "c++17", "defines": ["A=1"], "fast_math": false,
      "headers": [{ "name": "a.h", "text": "" }], "max_registers": 64 } },
    { "name": "ready", "path": "code/ready.ptx", "kind": "ptx",
      "blake3": "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262" }
  ],
  "kernels": [
    { "name": "noop", "builtin": "noop" },
    { "id": 2, "name": "tensor_add", "builtin": "tensor_add", "type": "f32" },
    {
      "id": 10, "name": "scale", "module": "scale", "entry": "scale<float>", "host": "scale",
      "params": [
        { "name": "x", "kind": "buffer", "dtype": "f32", "shape": ["rows", "4 * cols"],
          "access": "read_write", "layout": "row_major", "layout_id": 7 },
        { "name": "by", "kind": "scalar", "dtype": "f32", "min": -1e3, "max": 1000 },
        { "name": "rows", "kind": "scalar", "dtype": "u32", "min": 1 },
        { "name": "cols", "kind": "scalar", "dtype": "i64", "min": 0, "max": "rows * 16" },
        { "name": "tail", "kind": "bytes", "bytes": 24 }
      ],
      "grid": ["max(1, ceil_div(rows * cols * 4, 128))", 1], "block": 128, "shared_bytes": "rows * 0",
      "deterministic": false, "budget_ms": 10000
    },
    { "name": "device_only", "module": "ready", "threads": 1 }
  ]
}
"#;

fn parse(json: &str) -> worker_cuda::Result<Manifest> {
    Manifest::parse(json, "")
}

fn refusal(json: &str) -> String {
    parse(json).expect_err("refused").to_string()
}

/// A manifest of one kernel with these fields in addition to its name and host function.
fn kernel(fields: &str) -> String {
    format!(r#"{{ "manifest": 1, "kernels": [ {{ "name": "k", "host": "h", {fields} }} ] }}"#)
}

/// One with this parameter before an integer n.
fn param(fields: &str) -> String {
    kernel(&format!(
        "\n\"params\": [ {{ \"name\": \"p\", {fields} }},\n \
         {{ \"name\": \"n\", \"kind\": \"scalar\", \"dtype\": \"i32\" }} ]"
    ))
}

#[test]
fn a_manifest_says_what_its_kernels_are() {
    let manifest = parse(SAMPLE).unwrap();

    assert_eq!(manifest.modules.len(), 2);
    assert_eq!(manifest.modules[0].arch.as_deref(), Some("sm_90a"));
    let scale = &manifest.kernels[2];
    assert_eq!(
        scale.signature,
        "rw f32[$2,(4*$3)] row #7;f32{-1000..1000};u32{1..};i64{0..($2*16)};bytes[24];"
    );
    // Of the same bytes by another implementation of the hash.
    assert_eq!(scale.sig_hash, fnv1a(scale.signature.as_bytes()));
    assert!(!scale.is_deterministic);
    assert_eq!((scale.id, scale.budget_ms), (Some(10), 10_000));
    assert_eq!(manifest.kernels[0].id, Some(1));
    let params = scale.params();
    assert_eq!(
        (params[0].dtype, params[0].shape.join(";")),
        ("f32", "rows;4 * cols".into())
    );
    assert!(params[0].is_read && params[0].is_written && !params[2].is_written);
    assert_eq!((params[3].dtype, params[4].kind), ("i64", ParamKind::Bytes));
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn kernels_of_a_manifest_run_on_the_host() {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    let manifest = parse(SAMPLE).unwrap();
    let hosts = HostFunctions::new().with("scale", |call| {
        let by = call.value::<f32>(1)?;
        call.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= by);
        assert_eq!((call.grid()[0], call.block()[0]), (1, 128));
        assert_eq!(call.bytes(4)?, [9; 24]);
        assert_eq!(call.bytes(1)?, by.to_le_bytes());
        for (index, kind) in [(0, ErrorKind::InvalidArgument), (5, ErrorKind::OutOfRange)] {
            assert_eq!(call.bytes(index).unwrap_err().kind(), kind);
        }
        Ok(())
    });

    // SAFETY: nothing but a host function.
    unsafe { compute.register_manifest(&manifest, &hosts) }.unwrap();

    let listed = compute.registered().unwrap();
    let seen: Vec<_> = listed
        .iter()
        .map(|k| (k.id, k.name.as_str(), k.flags()))
        .collect();
    assert_eq!(
        seen,
        [
            (1, "noop", 0),
            (2, "tensor_add", 0),
            (10, "scale", 1),
            (11, "device_only", 2)
        ]
    );
    assert_eq!(listed[2].sig_hash, manifest.kernels[2].sig_hash);
    let mut x = compute.device().upload(&[1.0f32; 8]).unwrap();
    let tail = [9u8; 24];
    let args = [
        GpuArg::from(&mut x),
        2.0f32.into(),
        1u32.into(),
        2i64.into(),
        GpuArg::bytes(&tail),
    ];
    let result = compute.run("scale", &args).unwrap();
    assert_eq!(result.elements, 128);
    assert_eq!(x.to_vec().unwrap(), [2.0; 8]);
    let error = compute.run("device_only", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);

    // SAFETY: as above.
    let error = unsafe { compute.register_manifest(&manifest, &HostFunctions::new()) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel 'scale': host function 'scale' is not given"
    );
    assert_eq!(compute.registered().unwrap(), listed, "all or nothing");
}

#[test]
fn mistakes_report_line_and_path() {
    let cases = [
        ("", "line 1: EOF while parsing a value"),
        ("[]", "line 1: the document: is no object"),
        ("{}", "line 1: the document: 'manifest' is missing"),
        (
            "{\"manifest\": 2}",
            "line 1: manifest: is not 1, the version this reads",
        ),
        (
            "{\"manifest\": 1}",
            "line 1: the document: 'kernels' is missing",
        ),
        (
            "{\"manifest\": 1,\n\"kernels\": [],\n\"kernels\": []}",
            "line 3: kernels: given twice",
        ),
        (
            "{\"manifest\": 1,\n\n\"kernals\": []}",
            "line 3: kernals: no such field; there are manifest, modules, kernels",
        ),
        (
            "{\"manifest\": 1,\n\"kernels\": [}",
            "line 2: expected value",
        ),
        (
            "{\"manifest\": 1, \"kernels\": []}\n{}",
            "line 2: trailing characters",
        ),
        (
            "{\"manifest\": 1, \"kernels\": [{\"name\": \"k\"}]}",
            "line 1: kernels[0]: has neither 'module' nor 'host' nor 'builtin'",
        ),
        (
            "{\"manifest\": 1, \"kernels\": [{\"name\": \"k\", \"module\": \"m\"}]}",
            "line 1: kernels[0].module: there is no such module",
        ),
    ];
    for (json, message) in cases {
        assert_eq!(refusal(json), message, "{json}");
    }
    let kernels = [
        ("\"id\": 0", "line 1: kernels[0].id: is 0, at least 1"),
        (
            "\"id\": 2",
            "line 1: kernels[0]: id 2 is that of a kernel of the catalogue",
        ),
        (
            "\"entry\": \"e\"",
            "line 1: kernels[0].entry: is of no module",
        ),
        (
            "\"type\": \"f16\"",
            "line 1: kernels[0].type: only a kernel of the catalogue has one",
        ),
        (
            "\"budget_ms\": -1",
            "line 1: kernels[0].budget_ms: is no integer of 0 to 4294967295",
        ),
        (
            "\"grid\": [1,\n\"m\"]",
            "line 2: kernels[0].grid[1]: 'm': 'm' is no integer parameter",
        ),
        (
            "\"block\":\n\"4 *\"",
            "line 2: kernels[0].block: '4 *': at character 4 a number, a name or '(' is missing",
        ),
        (
            "\"block\": []",
            "line 1: kernels[0].block: has 0 dimensions, 1 to 3",
        ),
        (
            "\"grid\": \"1, 2\"",
            "line 1: kernels[0].grid: is not one expression",
        ),
        (
            "\"grid\": 1.5",
            "line 1: kernels[0].grid: is no integer and no expression",
        ),
        (
            "\"grid\": 1,\n\"threads\": 5",
            "line 2: kernels[0].threads: given, and grid[0] too",
        ),
        ("\"name\": \"b\"", "line 1: kernels[0].name: given twice"),
        (
            "\"deterministic\": 1",
            "line 1: kernels[0].deterministic: is not true or false",
        ),
        (
            "\"builtin\": \"k\"",
            "line 1: kernels[0].builtin: is not in the catalogue",
        ),
    ];
    for (fields, message) in kernels {
        assert_eq!(refusal(&kernel(fields)), message, "{fields}");
    }
    let params = [
        (
            "\"kind\": \"scalar\"",
            "line 2: kernels[0].params[0]: 'dtype' is missing",
        ),
        (
            "\"kind\": \"image\"",
            "line 2: kernels[0].params[0].kind: is not one of buffer, scalar, bytes",
        ),
        (
            "\"kind\": \"buffer\", \"dtype\": \"f32\", \"shape\": [\"n\",\n\"m\"]",
            "line 2: kernels[0].params[0].shape: 'n,m': 'm' is no integer parameter",
        ),
        (
            "\"kind\": \"buffer\", \"dtype\": \"f32\", \"shape\": [\"\"]",
            "line 2: kernels[0].params[0].shape[0]: is not one expression",
        ),
        (
            "\"kind\": \"buffer\", \"dtype\": \"f32\", \"shape\": [],\n \"min\": 1",
            "line 3: kernels[0].params[0].min: has no meaning for this kind",
        ),
        (
            "\"kind\": \"scalar\", \"dtype\": \"f64\", \"min\": \"n\"",
            "line 2: kernels[0].params[0].min: is no finite number",
        ),
        (
            "\"kind\": \"scalar\", \"dtype\": \"i8\", \"max\": 1.5",
            "line 2: kernels[0].params[0].max: '1.5': at character 2 ',' is missing",
        ),
        (
            "\"kind\": \"bytes\", \"bytes\": 4097",
            "line 2: kernels[0].params[0]: is not 1 to 4096 bytes",
        ),
        (
            "\"kind\": \"scalar\", \"dtype\": \"f16\", \"min\": 0",
            "line 2: kernels[0].params[0].min: only integers, f32 and f64 have bounds",
        ),
    ];
    for (fields, message) in params {
        assert_eq!(refusal(&param(fields)), message, "{fields}");
    }
    let module = |fields: &str| {
        refusal(&format!(
            "{{\"manifest\": 1, \"kernels\": [], \"modules\": [{{\"name\": \"m\", {fields}}}]}}"
        ))
    };
    for path in ["/etc/x.cu", "../x.cu", "a/../../x.cu", "."] {
        assert_eq!(
            module(&format!("\"path\": \"{path}\"")),
            "line 1: modules[0].path: is not in the folder of the manifest or below it"
        );
    }
    assert_eq!(
        module("\"path\": \"a\", \"source\": \"\""),
        "line 1: modules[0]: has not one of 'path' and 'source'"
    );
    assert_eq!(
        module("\"path\": \"a\", \"blake3\": \"abc\""),
        "line 1: modules[0].blake3: is not 64 hex digits"
    );
    assert_eq!(
        module("\"path\": \"a\", \"kind\": \"ptx\", \"options\": {}"),
        "line 1: modules[0].options: only CUDA C++ has options"
    );
}

#[test]
fn size_depth_and_encoding_are_bounded() {
    let deep = format!(
        "{{\"manifest\": 1,\n\"kernels\": {}{}}}",
        "[".repeat(16),
        "]".repeat(16)
    );
    let error = parse(&deep).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(error.to_string(), "line 2: nested deeper than 16");
    let text = format!(
        "{{\"manifest\": 1, \"kernels\": [], \"[{}\": 1}}",
        "[".repeat(40)
    );
    assert!(
        refusal(&text).contains("no such field"),
        "brackets in a text are no levels"
    );
    let error = parse(&" ".repeat((1 << 20) + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(
        error.to_string(),
        "a manifest of 1048577 bytes, at most 1048576"
    );
    let many = |count| "1,".repeat(count) + "1";
    assert_eq!(
        refusal(&format!(
            "{{\"manifest\": 1,\n\"kernels\": [{}]}}",
            many(4096)
        )),
        "line 2: kernels: has 4097 items, at most 4096"
    );
    let error = Manifest::parse(b"{\n\"a\xff\"", "").unwrap_err();
    assert_eq!(error.to_string(), "line 2: bytes that are not UTF-8");
}

#[test]
fn no_prefix_of_a_manifest_is_one() {
    for end in 0..SAMPLE.trim_end().len() {
        assert!(parse(&SAMPLE[..end]).is_err(), "{end}");
    }
}

#[test]
fn code_is_held_against_its_digest() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("manifest-digest");
    std::fs::create_dir_all(folder.join("code")).unwrap();
    std::fs::write(folder.join("code/ready.ptx"), b"").unwrap();
    std::fs::write(folder.join("m.json"), SAMPLE).unwrap();

    let manifest = Manifest::load(folder.join("m.json")).unwrap();

    assert_eq!(manifest.modules[1].read(&manifest.folder).unwrap(), b"");
    std::fs::write(folder.join("code/ready.ptx"), b"x").unwrap();
    let error = manifest.modules[1].read(&manifest.folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Integrity);
    std::fs::remove_file(folder.join("code/ready.ptx")).unwrap();
    assert_eq!(
        manifest.modules[1]
            .read(&manifest.folder)
            .unwrap_err()
            .kind(),
        ErrorKind::Io
    );
}

/// Pieces that a manifest is made of, and some that it is not.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    " ",
    "0",
    "1",
    "-1",
    "1e308",
    "1.5",
    "null",
    "true",
    "\"manifest\": 1",
    "\"kernels\": [",
    "\"modules\": [",
    "{ \"name\": \"k\"",
    "\"host\": \"h\"",
    "\"params\": [",
    "\"kind\": \"buffer\"",
    "\"kind\": \"scalar\"",
    "\"dtype\": \"i32\"",
    "\"shape\": [",
    "\"n\"",
    "\"ceil_div(n, 0)\"",
    "\"((((((((((((((((((n\"",
    "\"grid\": ",
    "\"block\": ",
    "\"threads\": ",
    "\"min\": ",
    "\"max\": ",
    "\"builtin\": \"softmax\"",
    "\"id\": ",
    "\\u0000",
    "é",
    "\u{0}",
];

/// Whatever comes, it is a manifest or an error of one line, within the limit of processor time.
fn survive(json: &[u8]) {
    match limited(|| Manifest::parse(json, "")) {
        Ok(manifest) => assert!(
            manifest
                .kernels
                .iter()
                .all(|kernel| !kernel.name.is_empty())
        ),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
        }
    }
}

/// As much of each as fits into a MiB.
#[test]
fn the_largest_manifests_are_survived() {
    let fill = |head: &str, item: &str, tail: &str| {
        let count = ((1 << 20) - head.len() - tail.len()) / (item.len() + 8);
        let count = if head.ends_with("\"kernels\":[") {
            count.min(4096)
        } else {
            count
        };
        let items: Vec<_> = (0..count)
            .map(|i| item.replace('@', &i.to_string()))
            .collect();
        format!("{head}{}{tail}", items.join(","))
    };
    let of_kernels = |item: &str| fill("{\"manifest\":1,\"kernels\":[", item, "]}");
    survive(of_kernels("{\"name\":\"@\",\"host\":\"h\"}").as_bytes());
    survive(of_kernels("{\"name\":\"@\",\"host\":\"h\",\"grid\":\"1+1+1+1+1+1+1+1\"}").as_bytes());
    survive(of_kernels("{\"name\":\"k\",\"builtin\":\"softmax\"}").as_bytes());
    survive(fill("{\"manifest\":1,\"kernels\": [", "1", "]}").as_bytes());
    let head = "{\"manifest\":1,\"kernels\":[{\"name\":\"k\",\"host\":\"h\",\"params\":[";
    let scalar = "{\"name\":\"n@\",\"kind\":\"scalar\",\"dtype\":\"i32\"}";
    survive(fill(head, scalar, "]}]}").as_bytes());
    let long = "(n999+n998*n997)+".repeat(14) + "1";
    let scalars: Vec<_> = (0..1000)
        .map(|i| scalar.replace('@', &i.to_string()))
        .collect();
    let bounded =
        format!("{{\"name\":\"m@\",\"kind\":\"scalar\",\"dtype\":\"i32\",\"max\":\"{long}\"}}");
    let bounded: Vec<_> = (0..24)
        .map(|i| bounded.replace('@', &i.to_string()))
        .collect();
    let whole = format!("{head}{},{}]}}]}}", scalars.join(","), bounded.join(","));
    assert!(parse(&whole).is_ok());
    let many = "{\"name\":\"@\",\"host\":\"h\",\"params\":[".to_owned()
        + &scalars[980..].join(",")
        + &format!("],\"grid\":\"{long}\",\"shared_bytes\":\"{long}\"}}");
    assert!(parse(&of_kernels(&many)).is_ok());
    survive(of_kernels(&many).as_bytes());
    survive(fill("{", "\"@\":1", "}").as_bytes());
    survive(fill("{\"manifest\":", "\"a\"", "}").as_bytes());
    survive(format!("\"{}\"", "\\u0041".repeat(170_000)).as_bytes());
    survive("[".repeat(1 << 20).as_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_in_any_order_are_survived(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60)
    ) {
        survive(pieces.concat().as_bytes());
    }

    #[test]
    fn changed_manifests_are_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        survive(&bytes);
    }

    #[test]
    fn spliced_manifests_are_survived(
        cuts in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..40, prop::sample::select(&PIECES[..])), 1..4)
    ) {
        let mut text = SAMPLE.to_owned();
        for (at, length, piece) in cuts {
            let begin = at.index(text.len());
            let end = (begin + length).min(text.len());
            if text.is_char_boundary(begin) && text.is_char_boundary(end) {
                text.replace_range(begin..end, piece);
            }
        }
        survive(text.as_bytes());
    }
}
