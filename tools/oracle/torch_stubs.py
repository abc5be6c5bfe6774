#!/usr/bin/env python3
"""Writes empty stand-ins of NVIDIA's libraries, so that PyPI's torch (a CUDA build) loads on a machine
without them. Every function in them returns 0; only torch's CPU part may then be used.

Run: python torch_stubs.py TORCH_LIB_FOLDER OUTPUT_FOLDER   (needs nm, readelf, gcc)
Use: LD_LIBRARY_PATH=OUTPUT_FOLDER python …
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARY = re.compile(r"lib(cu|nccl|nv)")
UNVERSIONED = re.compile(r"(cu[A-Z]|cuda|cudnn|cublas|cufft|cusparse|cusolver|nccl|nvrtc|nvtx|cupti"
                         r"|__cuda|_?_nv|nvJit)|nvshmem")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    torch_libraries, output = (pathlib.Path(argument) for argument in sys.argv[1:])
    output.mkdir(parents=True, exist_ok=True)
    needed, unversioned = set(), set()
    by_version = collections.defaultdict(set)
    for library in torch_libraries.glob("*.so*"):
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-dW", str(library))))
        for line in run("nm", "-D", "-u", str(library)).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            by_version[version.lstrip("@")].add(symbol)
    unversioned = {symbol for symbol in by_version.pop("", set()) if UNVERSIONED.match(symbol)
                   or "nvshmem" in symbol}
    for index, name in enumerate(sorted(filter(LIBRARY.match, needed))):
        stem = name.split(".so")[0]
        versions = [version for version in sorted(by_version)
                    if version.startswith(stem) or (version == "NVSHMEM" and "nvshmem" in stem)]
        symbols = set().union(*(by_version[version] for version in versions))
        symbols |= unversioned if index == 0 else set()
        with tempfile.TemporaryDirectory() as folder:
            source, script = pathlib.Path(folder, "stub.s"), pathlib.Path(folder, "stub.map")
            source.write_text(".text\n" + "".join(
                f".globl {s}\n.type {s},@function\n{s}:\n" for s in sorted(symbols))
                + "xorl %eax,%eax\nret\n.section .note.GNU-stack,\"\",@progbits\n")
            script.write_text("".join(
                f"{version} {{ global: {' '.join(s + ';' for s in sorted(by_version[version]))} }};\n"
                for version in versions))
            run("gcc", "-shared", "-nostdlib", "-o", str(output / name), str(source),
                f"-Wl,-soname,{name}", *([f"-Wl,--version-script={script}"] if versions else []))


if __name__ == "__main__":
    main()
