//! The search for a CUDA toolkit, apart from everything that prints or runs: environment in, answer out.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Oldest toolkit that the native library compiles with: CUDA 13.0, as CUDA numbers it.
pub const OLDEST_VERSION: u32 = 13_000;

/// A toolkit with a compiler, headers and the static runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// Folder that holds `bin/nvcc`.
    pub root: PathBuf,
    /// Folder of `libcudart_static.a`.
    pub lib: PathBuf,
    /// `CUDA_VERSION` of its `cuda.h`: major * 1000 + minor * 10.
    pub version: u32,
}

/// Every place that was looked at, and what was missing there.
#[derive(Debug, Default)]
pub struct Rejections(Vec<(String, PathBuf, String)>);

impl fmt::Display for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (source, place, reason)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{source} ({}): {reason}", place.display())?;
        }
        Ok(())
    }
}

/// Looks in this order: `WORKER_CUDA_TOOLKIT`; `CUDAToolkit_ROOT`, `CUDA_PATH`, `CUDA_HOME`, `CUDA_ROOT`;
/// `CUDACXX`; nvcc on `PATH`; the conda prefix; the active virtual environment's wheels
/// (`nvidia/cu13`); the usual folders, newest version first. A named place that is wrong is reported
/// and passed over, except `WORKER_CUDA_TOOLKIT`: whoever sets that one means it.
pub fn find(env: &mut dyn FnMut(&str) -> Option<OsString>) -> Result<Toolkit, Rejections> {
    let mut rejections = Rejections::default();
    let named = env("WORKER_CUDA_TOOLKIT");
    let candidates = match &named {
        Some(place) => vec![("WORKER_CUDA_TOOLKIT".to_string(), PathBuf::from(place))],
        None => candidates(env),
    };
    let mut seen: Vec<PathBuf> = Vec::new();
    for (source, place) in candidates {
        for root in expand(&place) {
            if seen.contains(&root) {
                continue;
            }
            seen.push(root.clone());
            match inspect(&root) {
                Ok(toolkit) => return Ok(toolkit),
                Err(reason) => rejections.0.push((source.clone(), root, reason)),
            }
        }
    }
    Err(rejections)
}

fn candidates(env: &mut dyn FnMut(&str) -> Option<OsString>) -> Vec<(String, PathBuf)> {
    let mut places = Vec::new();
    for name in ["CUDAToolkit_ROOT", "CUDA_PATH", "CUDA_HOME", "CUDA_ROOT"] {
        if let Some(value) = env(name) {
            places.push((name.to_string(), PathBuf::from(value)));
        }
    }
    if let Some(root) = env("CUDACXX").and_then(|nvcc| root_of_nvcc(Path::new(&nvcc))) {
        places.push(("CUDACXX".to_string(), root));
    }
    if let Some(path) = env("PATH") {
        let nvcc = std::env::split_paths(&path)
            .map(|dir| dir.join("nvcc"))
            .find(|f| f.is_file());
        if let Some(root) = nvcc.and_then(|nvcc| root_of_nvcc(&nvcc)) {
            places.push(("nvcc on PATH".to_string(), root));
        }
    }
    for name in ["CONDA_PREFIX", "VIRTUAL_ENV"] {
        if let Some(value) = env(name) {
            places.push((name.to_string(), PathBuf::from(value)));
        }
    }
    for root in usual_folders(Path::new("/usr/local")) {
        places.push(("usual folder".to_string(), root));
    }
    places.push(("usual folder".to_string(), PathBuf::from("/opt/cuda")));
    places
}

/// `/usr/local/cuda`, then `/usr/local/cuda-X.Y`, newest first.
fn usual_folders(parent: &Path) -> Vec<PathBuf> {
    let mut versioned: Vec<((u32, u32), PathBuf)> = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(version) = name.strip_prefix("cuda-") {
            let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
            let key = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            versioned.push((key, entry.path()));
        }
    }
    versioned.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
    std::iter::once(parent.join("cuda"))
        .chain(versioned.into_iter().map(|(_, p)| p))
        .collect()
}

/// The toolkit folder of `…/bin/nvcc`, symbolic links resolved.
fn root_of_nvcc(nvcc: &Path) -> Option<PathBuf> {
    let nvcc = fs::canonicalize(nvcc).ok()?;
    Some(nvcc.parent()?.parent()?.to_path_buf())
}

/// A place is a toolkit folder itself, or a Python environment whose wheels hold one in
/// `lib/python3.*/site-packages/nvidia/cu*`.
fn expand(place: &Path) -> Vec<PathBuf> {
    let mut roots = vec![place.to_path_buf()];
    for lib in ["lib", "lib64"] {
        for python in sorted_entries(&place.join(lib), "python3") {
            for wheels in sorted_entries(&python.join("site-packages/nvidia"), "cu1") {
                roots.push(wheels);
            }
        }
    }
    roots
}

fn sorted_entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths.reverse();
    paths
}

/// The toolkit in `root`, or what it lacks.
fn inspect(root: &Path) -> Result<Toolkit, String> {
    if !root.is_dir() {
        return Err("no such folder".to_string());
    }
    if !root.join("bin/nvcc").is_file() {
        return Err("no bin/nvcc".to_string());
    }
    let lib = ["lib64", "targets/x86_64-linux/lib", "lib"]
        .iter()
        .map(|name| root.join(name))
        .find(|lib| lib.join("libcudart_static.a").is_file())
        .ok_or("no libcudart_static.a in lib64, targets/x86_64-linux/lib or lib")?;
    let header = ["include/cuda.h", "targets/x86_64-linux/include/cuda.h"]
        .iter()
        .map(|name| root.join(name))
        .find_map(|path| fs::read_to_string(path).ok())
        .ok_or("no include/cuda.h")?;
    let version = header
        .lines()
        .find_map(|line| line.strip_prefix("#define CUDA_VERSION "))
        .and_then(|number| number.trim().parse::<u32>().ok())
        .ok_or("cuda.h defines no CUDA_VERSION")?;
    if version < OLDEST_VERSION {
        let (found, needed) = (dotted(version), dotted(OLDEST_VERSION));
        return Err(format!("CUDA {found}, needs {needed} or newer"));
    }
    Ok(Toolkit {
        root: root.to_path_buf(),
        lib,
        version,
    })
}

/// 13000 as "13.0".
pub fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
