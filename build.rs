//! Finds the CUDA toolkit if one is wanted, runs CMake on `cuda/`, links the archive; nothing else.
//!
//! No network, no look at a GPU, nothing written outside `OUT_DIR`, no dependencies: what this needs of
//! a CMake driver is forty lines, and they pass the CUDA settings and every rerun directive.
//!
//! Environment:
//! - `WORKER_CUDA_BUILD=on|off|auto` overrides the features `cuda` and `cuda-auto`.
//! - `WORKER_CUDA_TOOLKIT=DIR` names the toolkit; else the places listed in `build_toolkit.rs`.
//! - `WORKER_CUDA_ARCHS`, `CUDAARCHS`, `CMAKE_CUDA_ARCHITECTURES`: architectures, "90a;100".
//! - `WORKER_CUDA_BUILD_TYPE`: CMake's build type; Release in every Cargo profile unless set.
//! - `WORKER_CUDA_NATIVE_DIR=DIR` links the library installed there and builds nothing.
//! - `CXXSTDLIB`: the C++ runtime to link, "stdc++" unless set; "" links none.
//! - `CMAKE`, `CC`, `CXX`, `CUDAHOSTCXX`, `CFLAGS`, `CXXFLAGS`, `CUDAFLAGS`, `CMAKE_GENERATOR` as CMake has them.

#[path = "build_toolkit.rs"]
mod toolkit;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use toolkit::Toolkit;

/// Machine code for what a release serves, and intermediate code of the newest for what comes after.
const DEFAULT_ARCHS: &str = "80-real;86-real;89-real;90a-real;100-real;120";

/// What decides how the native library is configured, besides the sources.
const TOOLCHAIN_VARIABLES: [&str; 11] = [
    "CC",
    "CXX",
    "CUDAHOSTCXX",
    "CFLAGS",
    "CXXFLAGS",
    "CUDAFLAGS",
    "LDFLAGS",
    "CMAKE_GENERATOR",
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_CUDA_COMPILER_LAUNCHER",
];

fn main() -> ExitCode {
    println!("cargo::rustc-check-cfg=cfg(worker_cuda_has_cuda)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build_toolkit.rs");
    if env("DOCS_RS").is_some() {
        return ExitCode::SUCCESS; // rustdoc links nothing
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let prefix = match env("WORKER_CUDA_NATIVE_DIR") {
        Some(prefix) => {
            let prefix = PathBuf::from(prefix);
            println!(
                "cargo::rerun-if-changed={}",
                prefix.join("lib/libworker_cuda.a").display()
            );
            prefix
        }
        None => {
            let toolkit = wanted_toolkit()?;
            run_cmake(toolkit.as_ref())?
        }
    };
    link(&prefix)
}

/// The toolkit to build with; `None` builds the host backend only.
fn wanted_toolkit() -> Result<Option<Toolkit>, String> {
    let choice = match env("WORKER_CUDA_BUILD") {
        Some(value) => value.to_string_lossy().into_owned(),
        None if feature("cuda") => "on".to_string(),
        None if feature("cuda-auto") => "auto".to_string(),
        None => "off".to_string(),
    };
    if !["on", "off", "auto"].contains(&choice.as_str()) {
        return Err(format!(
            "WORKER_CUDA_BUILD is \"{choice}\"; it must be on, off or auto"
        ));
    }
    if choice == "off" {
        return Ok(None);
    }
    match toolkit::find(&mut env) {
        Ok(toolkit) => Ok(Some(toolkit)),
        Err(rejections) if choice == "auto" => {
            println!(
                "cargo::warning=no CUDA toolkit found: building the host backend only \
                 (WORKER_CUDA_BUILD=off silences this, =on makes it an error that lists where was looked)"
            );
            note("toolkit-search.txt", &rejections.to_string())?;
            Ok(None)
        }
        Err(rejections) => Err(format!(
            "no CUDA toolkit of version {} or newer; looked at: {rejections}. Set WORKER_CUDA_TOOLKIT to its \
             folder, or WORKER_CUDA_BUILD=off to build without CUDA",
            toolkit::dotted(toolkit::OLDEST_VERSION)
        )),
    }
}

/// Configures, builds and installs `cuda/`; returns the prefix.
fn run_cmake(toolkit: Option<&Toolkit>) -> Result<PathBuf, String> {
    let source = PathBuf::from(required("CARGO_MANIFEST_DIR")?).join("cuda");
    let out = PathBuf::from(required("OUT_DIR")?);
    let (binary, prefix) = (out.join("native"), out.join("prefix"));
    for name in ["CMakeLists.txt", "cmake", "include", "kernels", "src"] {
        let path = source.join(name);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }

    let cmake = env("CMAKE").unwrap_or_else(|| "cmake".into());
    let build_type = env("WORKER_CUDA_BUILD_TYPE").unwrap_or_else(|| "Release".into());
    let mut options = vec![
        definition("CMAKE_BUILD_TYPE", &build_type),
        definition("CMAKE_INSTALL_PREFIX", &prefix),
        definition("CMAKE_INSTALL_LIBDIR", "lib"),
        definition("WCUDA_BUILD_TESTS", "OFF"),
        definition("WCUDA_COMPILE_LIBRARY_BY_FOLDER", "ON"),
        definition("WCUDA_CUDA", if toolkit.is_some() { "ON" } else { "OFF" }),
    ];
    if let Some(toolkit) = toolkit {
        options.push(definition("WCUDA_CUDA_TOOLKIT", &toolkit.root));
        options.push(definition("CMAKE_CUDA_ARCHITECTURES", architectures()?));
    }
    let mut configure = Command::new(&cmake);
    configure
        .arg("-S")
        .arg(&source)
        .arg("-B")
        .arg(&binary)
        .args(&options);
    if env("CMAKE_GENERATOR").is_none() && runs("ninja") {
        configure.args(["-G", "Ninja"]);
    }

    // CMake keeps what it learned of compilers and options; another toolchain, option or source folder
    // starts from nothing.
    let mut settings = format!("{configure:?}\n{}\n", version_of(&cmake)?);
    for name in TOOLCHAIN_VARIABLES {
        settings.push_str(&format!("{name}={:?}\n", env(name)));
    }
    if fs::read_to_string(out.join("settings.txt")).ok().as_deref() != Some(&settings) {
        configure.arg("--fresh");
    }
    let _ = fs::remove_file(out.join("settings.txt"));
    run(&mut configure, "configuring the native library")?;
    note("settings.txt", &settings)?;

    let jobs = env("NUM_JOBS").unwrap_or_else(|| "1".into());
    let mut compile = Command::new(&cmake);
    compile
        .arg("--build")
        .arg(&binary)
        .arg("--parallel")
        .arg(jobs);
    run(&mut compile, "compiling the native library")?;
    run(
        Command::new(&cmake).arg("--install").arg(&binary),
        "installing the native library",
    )?;
    Ok(prefix)
}

/// Architectures by environment, or the fixed list. `native` is refused: without a GPU it compiles
/// for something else, silently.
fn architectures() -> Result<OsString, String> {
    let mut chosen = None;
    for name in ["WORKER_CUDA_ARCHS", "CUDAARCHS", "CMAKE_CUDA_ARCHITECTURES"] {
        chosen = chosen.or(env(name));
    }
    let list = chosen.map(|value| value.to_string_lossy().replace([',', ' '], ";"));
    match list {
        Some(list) if list == "native" => Err(
            "architecture \"native\" depends on the machine that builds; name it, \"90a;100\""
                .to_string(),
        ),
        Some(list) => Ok(list.into()),
        None => Ok(DEFAULT_ARCHS.into()),
    }
}

/// Link directives and metadata (`DEP_WORKER_CUDA_…` to crates that depend on this one), from the
/// pkg-config file of the installed tree.
fn link(prefix: &Path) -> Result<(), String> {
    let lib = prefix.join("lib");
    let description = lib.join("pkgconfig/worker_cuda.pc");
    let text = fs::read_to_string(&description).map_err(|error| {
        format!(
            "{}: {error}; not an installed worker_cuda",
            description.display()
        )
    })?;
    let variable = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or("").to_string()
    };

    println!("cargo::rustc-link-search=native={}", lib.display());
    if feature("compat") {
        println!("cargo::rustc-link-lib=static=worker_cuda_compat");
    }
    println!("cargo::rustc-link-lib=static=worker_cuda");
    let cuda = variable("cuda") == "1";
    if cuda {
        println!("cargo::rustc-cfg=worker_cuda_has_cuda");
        println!("cargo::rustc-link-search=native={}", variable("cudart_dir"));
        println!("cargo::rustc-link-lib=static=cudart_static");
        println!("cargo::rustc-link-lib=dylib=rt");
    }
    let runtime = env("CXXSTDLIB").unwrap_or_else(|| "stdc++".into());
    if !runtime.is_empty() {
        println!("cargo::rustc-link-lib=dylib={}", runtime.to_string_lossy());
    }
    println!("cargo::rustc-link-lib=dylib=dl");
    println!("cargo::rustc-link-lib=dylib=pthread");

    println!(
        "cargo::metadata=include={}",
        prefix.join("include").display()
    );
    println!("cargo::metadata=lib={}", lib.display());
    println!("cargo::metadata=root={}", prefix.display());
    println!("cargo::metadata=cuda={}", i32::from(cuda));
    println!("cargo::metadata=cuda_version={}", variable("cuda_version"));
    println!("cargo::metadata=archs={}", variable("cuda_architectures"));
    Ok(())
}

/// An environment variable; a change of it runs this script again.
fn env(name: &str) -> Option<OsString> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var_os(name).filter(|value| !value.is_empty() || name == "CXXSTDLIB")
}

/// A variable that Cargo always sets.
fn required(name: &str) -> Result<OsString, String> {
    std::env::var_os(name).ok_or_else(|| format!("{name} is not set: run this through cargo"))
}

fn feature(name: &str) -> bool {
    let variable = format!("CARGO_FEATURE_{}", name.to_uppercase().replace('-', "_"));
    std::env::var_os(variable).is_some()
}

fn definition(name: &str, value: impl AsRef<std::ffi::OsStr>) -> OsString {
    let mut argument = OsString::from(format!("-D{name}="));
    argument.push(value);
    argument
}

fn note(name: &str, text: &str) -> Result<(), String> {
    let path = PathBuf::from(required("OUT_DIR")?).join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

fn version_of(cmake: &OsString) -> Result<String, String> {
    let output = Command::new(cmake)
        .arg("--version")
        .output()
        .map_err(|error| {
            format!(
                "{}: {error}; the native library needs CMake 3.25 or newer",
                cmake.to_string_lossy()
            )
        })?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .unwrap_or("")
        .to_string())
}

/// Runs a command; its output appears when it fails.
fn run(command: &mut Command, purpose: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        format!("{purpose}: {program}: {error}")
    })?;
    if output.status.success() {
        return Ok(());
    }
    eprintln!("{command:?}");
    eprint!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Err(format!(
        "{purpose} failed with {}; the output of CMake is above",
        output.status
    ))
}
