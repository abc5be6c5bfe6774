//! Programs compiled by NVRTC where the environment names it (`WCUDA_TEST_NVRTC`, needed under
//! `WCUDA_REQUIRE_NVRTC=1`).

use std::path::PathBuf;

use worker_cuda::*;

/// A builder for PTX, or None after saying why there is none.
fn program(source: &str) -> Option<ProgramBuilder> {
    let builder = Program::builder(source).architecture("compute_90");
    match std::env::var_os("WCUDA_TEST_NVRTC") {
        Some(folder) => Some(builder.library_folder(PathBuf::from(folder))),
        None if std::env::var("WCUDA_REQUIRE_NVRTC").is_ok_and(|value| value == "1") => {
            panic!("WCUDA_TEST_NVRTC is not set")
        }
        None => {
            eprintln!("skipped: WCUDA_TEST_NVRTC is not set");
            None
        }
    }
}

const SCALE: &str =
    "template <class T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }";

#[test]
fn programs_compile_with_names_log_and_options() {
    let Some(builder) = program(SCALE) else {
        return;
    };
    let compiled = builder
        .name("mine.cu")
        .standard("c++17")
        .define("UNUSED=1")
        .header("mine.h", "int x;")
        .expression("scale<float>")
        .fast_math(true)
        .line_info(true)
        .fmad(false)
        .ftz(true)
        .prec_div(true)
        .prec_sqrt(true)
        .max_registers(64)
        .compile()
        .unwrap();

    assert_eq!(
        compiled.name_of("scale<float>").unwrap(),
        "_Z5scaleIfEvPT_S0_"
    );
    assert_eq!(
        compiled.name_of("scale<int>").unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        CodeKind::of(compiled.code().unwrap()).unwrap(),
        CodeKind::Ptx
    );
    let info = compiled.info().unwrap();
    assert_eq!(
        (info.kind, info.architecture.as_str()),
        (CodeKind::Ptx, "compute_90")
    );
    assert!(info.nvrtc_version >= 13000 && info.cache == CacheResult::None);
}

#[test]
fn a_failed_compile_has_its_first_line_and_its_whole_log() {
    let Some(builder) =
        program("__device__ int f() { return a; }\n__device__ int g() { return b; }")
    else {
        return;
    };

    let error = builder.compile().unwrap_err();

    assert_eq!(error.kind(), ErrorKind::CompileFailed);
    assert_eq!(
        error.message(),
        "kernel.cu(1): error: identifier \"a\" is undefined"
    );
    assert!(
        error
            .compile_log()
            .unwrap()
            .contains("identifier \"b\" is undefined")
    );
}

#[test]
fn the_cache_answers_the_second_time() {
    let folder = std::env::temp_dir().join(format!("worker-cuda-cache-{}", std::process::id()));
    let cache = KernelCache::open(&folder, 1 << 20).unwrap();
    if let Some(builder) = program(SCALE) {
        let first = builder.clone().cache(&cache).compile().unwrap();
        let second = builder.cache(&cache).compile().unwrap();
        assert_eq!(first.info().unwrap().cache, CacheResult::Miss);
        assert_eq!(second.info().unwrap().cache, CacheResult::Hit);
        assert_eq!(first.code().unwrap(), second.code().unwrap());
        assert_eq!(cache.stats().unwrap().entries, 1);
    }
    cache.clear().unwrap();
    std::fs::remove_dir(&folder).unwrap();
}

fn text(program: &Program) -> String {
    String::from_utf8_lossy(program.code().unwrap()).into_owned()
}

#[test]
fn functions_without_a_mark_are_the_devices_when_asked() {
    let source = "int one() { return 1; }\nextern \"C\" __global__ void k(int* p) { *p = one(); }";
    let Some(builder) = program(source) else {
        return;
    };
    let error = builder.clone().compile().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CompileFailed);
    builder.default_device(true).compile().unwrap();
}

#[test]
fn code_for_debuggers_and_for_linking_differs() {
    let source = "extern __device__ int other(int);\n\
                  extern \"C\" __global__ void k(int* p) { *p = other(*p); }";
    let Some(builder) = program(source) else {
        return;
    };
    let linkable = builder.clone().relocatable(true).compile().unwrap();
    assert!(text(&linkable).contains(".extern .func"));
    let source = "extern \"C\" __global__ void k(int* p) { *p += 1; }";
    let builder = program(source).unwrap();
    let plain = text(&builder.clone().compile().unwrap());
    let debug = text(&builder.clone().debug(true).compile().unwrap());
    assert!(!plain.contains(".target sm_90, debug") && debug.contains("debug"));
    let lines = text(&builder.line_info(true).compile().unwrap());
    assert!(!plain.contains(".loc") && lines.contains(".loc"));
}

#[test]
fn folders_of_headers_are_searched_and_pass_the_cache_by() {
    let folder = std::env::temp_dir().join(format!("worker-cuda-include-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("mine.h"), "#define MINE 7\n").unwrap();
    let cache_folder = folder.join("cache");
    let cache = KernelCache::open(&cache_folder, 1 << 20).unwrap();
    let source = "#include \"mine.h\"\nextern \"C\" __global__ void k(int* p) { *p = MINE; }";
    if let Some(builder) = program(source) {
        let error = builder.clone().compile().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CompileFailed);
        for _ in 0..2 {
            let compiled = (builder.clone().include_folder(&folder))
                .cache(&cache)
                .compile()
                .unwrap();
            assert_eq!(compiled.info().unwrap().cache, CacheResult::Bypassed);
        }
        assert_eq!(cache.stats().unwrap().entries, 0);
    }
    drop(cache);
    std::fs::remove_dir_all(&folder).unwrap();
}
