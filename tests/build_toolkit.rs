//! The build script's search for a CUDA toolkit, on folders made for the purpose.

#[path = "../build_toolkit.rs"]
mod toolkit;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("toolkit-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a writable target folder");
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a writable folder");
    fs::write(path, text).expect("a writable file");
}

fn make_toolkit(root: &Path, lib: &str, version: u32) {
    write(root.join("bin/nvcc"), "");
    write(root.join(lib).join("libcudart_static.a"), "");
    write(
        root.join("include/cuda.h"),
        &format!("/* */\n#define CUDA_VERSION {version}\n"),
    );
}

fn find(variables: &[(&str, PathBuf)]) -> Result<toolkit::Toolkit, String> {
    let map: HashMap<&str, OsString> = variables
        .iter()
        .map(|(name, path)| (*name, path.clone().into()))
        .collect();
    toolkit::find(&mut |name| map.get(name).cloned()).map_err(|rejections| rejections.to_string())
}

#[test]
fn a_system_toolkit_is_found_through_each_of_the_usual_variables() {
    let folder = Folder::new("variables");
    make_toolkit(&folder.0, "lib64", 13_000);
    for name in [
        "WORKER_CUDA_TOOLKIT",
        "CUDAToolkit_ROOT",
        "CUDA_PATH",
        "CUDA_HOME",
        "CUDA_ROOT",
    ] {
        let found = find(&[(name, folder.0.clone())]).expect(name);
        assert_eq!(
            (found.version, found.lib),
            (13_000, folder.join("lib64")),
            "{name}"
        );
    }
}

#[test]
fn nvcc_by_variable_or_on_the_path_names_its_toolkit() {
    let folder = Folder::new("nvcc");
    make_toolkit(&folder.0, "targets/x86_64-linux/lib", 13_010);
    for (name, value) in [("CUDACXX", "bin/nvcc"), ("PATH", "bin")] {
        let found = find(&[(name, folder.join(value))]).expect(name);
        assert_eq!(
            found.root,
            fs::canonicalize(&folder.0).expect("the folder"),
            "{name}"
        );
    }
}

#[test]
fn the_wheels_of_an_active_virtual_environment_are_found() {
    let folder = Folder::new("wheels");
    let root = folder.join("lib/python3.11/site-packages/nvidia/cu13");
    make_toolkit(&root, "lib", 13_000);
    let found = find(&[("VIRTUAL_ENV", folder.0.clone())]).expect("the wheels");
    assert_eq!((&found.root, &found.lib), (&root, &root.join("lib")));
}

#[test]
fn an_earlier_place_wins_and_a_newer_version_than_known_is_accepted() {
    let folder = Folder::new("order");
    make_toolkit(&folder.join("a"), "lib64", 15_020);
    make_toolkit(&folder.join("b"), "lib64", 13_000);
    let found = find(&[
        ("CUDA_HOME", folder.join("b")),
        ("CUDA_PATH", folder.join("a")),
    ]);
    assert_eq!(found.expect("two toolkits").version, 15_020);
}

#[test]
fn every_rejected_place_is_named_with_what_it_lacks() {
    let folder = Folder::new("rejected");
    make_toolkit(&folder.join("old"), "lib64", 12_080);
    make_toolkit(&folder.join("headless"), "lib64", 13_000);
    fs::remove_file(folder.join("headless/include/cuda.h")).expect("the header");
    write(folder.join("shared/bin/nvcc"), "");
    fs::create_dir_all(folder.join("empty")).expect("a folder");
    let variables = [
        ("CUDAToolkit_ROOT", folder.join("old")),
        ("CUDA_PATH", folder.join("headless")),
        ("CUDA_HOME", folder.join("shared")),
        ("CUDA_ROOT", folder.join("empty")),
        ("CONDA_PREFIX", folder.join("absent")),
    ];

    // A toolkit in one of the usual folders of this machine would be found after these.
    let Err(message) = find(&variables) else {
        return;
    };

    for (name, path) in &variables {
        assert!(
            message.contains(&format!("{name} ({})", path.display())),
            "{message}"
        );
    }
    let reasons = [
        "CUDA 12.8, needs 13.0 or newer",
        "no include/cuda.h",
        "no libcudart_static.a",
        "no bin/nvcc",
    ];
    for reason in reasons.into_iter().chain(["no such folder"]) {
        assert!(message.contains(reason), "{reason}: {message}");
    }
}

#[test]
fn the_projects_own_variable_allows_no_other_place() {
    let folder = Folder::new("own");
    make_toolkit(&folder.join("good"), "lib64", 13_000);
    let variables = [
        ("WORKER_CUDA_TOOLKIT", folder.join("wrong")),
        ("CUDA_PATH", folder.join("good")),
    ];
    let message = find(&variables).expect_err("a named place that is wrong");
    assert!(
        message.starts_with("WORKER_CUDA_TOOLKIT") && !message.contains("good"),
        "{message}"
    );
}
