//! The build script as a program: which backend each setting of the switch builds, and what the failure says.
//! CMake is a script here that records its arguments and installs an empty tree.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const CMAKE: &str = r#"#!/bin/sh
case $1 in --version) echo "cmake version 3.25.1"; exit ;; esac
echo "$@" >>"$OUT_DIR/cmake.txt"
mkdir -p "$OUT_DIR/prefix/lib/pkgconfig"
cuda=0
case $* in *-DWCUDA_CUDA=ON*) cuda=1 ;; esac
[ "$1" != -S ] || echo "cuda=$cuda" >"$OUT_DIR/prefix/lib/pkgconfig/worker_cuda.pc"
"#;

/// The build script, compiled once.
fn script() -> &'static Path {
    static SCRIPT: OnceLock<PathBuf> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("build_switch_script");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
        let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition", "2024", "-o"])
            .arg(&path)
            .arg(source)
            .output()
            .expect("rustc");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        path
    })
}

/// Runs the script in an output folder of its own, with these variables only.
struct Run {
    folder: PathBuf,
    output: Output,
}

impl Run {
    fn new(name: &str, variables: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("switch-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let cmake = folder.join("cmake");
        fs::write(&cmake, CMAKE).expect("a script");
        fs::set_permissions(&cmake, fs::Permissions::from_mode(0o755)).expect("a program");
        let output = Command::new(script())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"))
            .env("OUT_DIR", &folder)
            .env("CMAKE", &cmake)
            .env("CMAKE_GENERATOR", "Ninja")
            .envs(variables.iter().copied())
            .output()
            .expect("the build script");
        Self { folder, output }
    }

    fn text(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).expect("UTF-8")
    }

    /// The arguments of CMake's calls, a line each; none if it was not called.
    fn cmake(&self) -> String {
        fs::read_to_string(self.folder.join("cmake.txt")).unwrap_or_default()
    }

    #[track_caller]
    fn builds_with_cuda(&self, with: bool) {
        let (text, cmake) = (self.text(), self.cmake());
        assert!(self.output.status.success(), "{text}");
        let wanted = if with { "ON" } else { "OFF" };
        assert!(cmake.contains(&format!("-DWCUDA_CUDA={wanted}")), "{cmake}");
        assert_eq!(text.contains("cudart_static"), with, "{text}");
        assert_eq!(
            text.contains("rustc-cfg=worker_cuda_has_cuda"),
            with,
            "{text}"
        );
        assert!(
            cmake.contains("--build") && cmake.contains("--install"),
            "{cmake}"
        );
    }

    #[track_caller]
    fn fails(&self, message: &str) {
        let text = self.text();
        assert!(!self.output.status.success(), "{text}");
        let errors: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("cargo::error="))
            .collect();
        assert_eq!(errors, [message]);
        assert_eq!(self.cmake(), "");
    }
}

const AUTO: (&str, &str) = ("CARGO_FEATURE_CUDA_AUTO", "1");
const CUDA: (&str, &str) = ("CARGO_FEATURE_CUDA", "1");
const NOWHERE: (&str, &str) = ("WORKER_CUDA_TOOLKIT", "/nowhere/cuda");
const WARNING: &str = "cargo::warning=no CUDA toolkit found: building the host backend only";
const ERROR: &str = "no CUDA toolkit of version 13.0 or newer; looked at: WORKER_CUDA_TOOLKIT (/nowhere/cuda): no such \
                     folder. Set WORKER_CUDA_TOOLKIT to its folder, or WORKER_CUDA_BUILD=off to build without CUDA";

/// A folder that passes for a toolkit.
fn toolkit(name: &str) -> String {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("switch-toolkit-{name}"));
    for (path, text) in [
        ("bin/nvcc", ""),
        ("lib64/libcudart_static.a", ""),
        ("include/cuda.h", "#define CUDA_VERSION 13000\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    root.to_str().expect("UTF-8").to_owned()
}

#[test]
fn auto_builds_the_host_backend_with_one_warning_where_no_toolkit_is() {
    let by_feature = Run::new("auto-feature", &[AUTO, NOWHERE]);
    by_feature.builds_with_cuda(false);
    assert_eq!(by_feature.text().matches(WARNING).count(), 1);
    let search = fs::read_to_string(by_feature.folder.join("toolkit-search.txt"));
    assert_eq!(
        search.expect("the places"),
        "WORKER_CUDA_TOOLKIT (/nowhere/cuda): no such folder"
    );

    let by_variable = Run::new(
        "auto-variable",
        &[CUDA, ("WORKER_CUDA_BUILD", "auto"), NOWHERE],
    );
    by_variable.builds_with_cuda(false);
    assert!(by_variable.text().contains(WARNING));
}

#[test]
fn auto_and_on_build_cuda_with_the_toolkit_that_is_there() {
    let root = toolkit("found");
    let place = ("WORKER_CUDA_TOOLKIT", root.as_str());
    for (name, variables) in [
        ("found-auto", [AUTO, place]),
        ("found-on", [("WORKER_CUDA_BUILD", "on"), place]),
        ("found-cuda", [CUDA, place]),
    ] {
        let run = Run::new(name, &variables);
        run.builds_with_cuda(true);
        assert!(
            run.cmake()
                .contains(&format!("-DWCUDA_CUDA_TOOLKIT={root}"))
        );
        assert!(!run.text().contains("cargo::warning"), "{}", run.text());
    }
}

#[test]
fn a_wanted_toolkit_that_is_missing_is_an_error_with_the_places() {
    Run::new("wanted-feature", &[CUDA, AUTO, NOWHERE]).fails(ERROR);
    Run::new(
        "wanted-variable",
        &[AUTO, ("WORKER_CUDA_BUILD", "on"), NOWHERE],
    )
    .fails(ERROR);
}

#[test]
fn off_looks_for_nothing_and_another_word_is_an_error() {
    let root = toolkit("unused");
    let off = Run::new(
        "off",
        &[
            CUDA,
            ("WORKER_CUDA_BUILD", "off"),
            ("WORKER_CUDA_TOOLKIT", &root),
        ],
    );
    off.builds_with_cuda(false);
    assert!(!off.text().contains("cargo::warning"), "{}", off.text());
    Run::new("without-features", &[NOWHERE]).builds_with_cuda(false);
    Run::new("word", &[("WORKER_CUDA_BUILD", "yes")])
        .fails("WORKER_CUDA_BUILD is \"yes\"; it must be on, off or auto");
}
