"""Compile time and size of device code: compile_report.py BUILD_FOLDER BINARY.

Prints the five slowest .cu files of the newest ninja log below BUILD_FOLDER, the sum of the seconds of all .cu files
(wall time while other compilers ran, so an upper bound of the CPU time, whose budget is 600 s), and the bytes of device
code in BINARY. More than 25 MB for one architecture is an error.
"""

import pathlib
import struct
import sys

DEVICE_BYTES_MAX = 25_000_000


def cuda_seconds(log: pathlib.Path) -> dict[str, float]:
    """Seconds of each .cu file; the last build of a file counts."""
    seconds = {}
    for line in log.read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        if output.endswith(".cu.o"):
            seconds[pathlib.Path(output).name[: -len(".o")]] = (int(end) - int(start)) / 1000
    return seconds


def section_bytes(binary: pathlib.Path, name: str) -> int:
    """Size of a section of a 64-bit little-endian ELF file."""
    data = binary.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 0x3A)

    def section(index: int):  # name, offset, size
        at = table + index * entry_bytes
        return struct.unpack_from("<I", data, at)[0], *struct.unpack_from("<QQ", data, at + 0x18)

    names = section(names_index)[1]
    for index in range(count):
        label, _, size = section(index)
        if data[names + label : data.index(b"\0", names + label)] == name.encode():
            return size
    return 0


def main() -> int:
    folder, binary = map(pathlib.Path, sys.argv[1:])
    logs = sorted(folder.glob("**/.ninja_log"), key=lambda log: log.stat().st_mtime, reverse=True)
    seconds = next(filter(None, map(cuda_seconds, logs)), {})
    for name, value in sorted(seconds.items(), key=lambda item: -item[1])[:5]:
        print(f"{value:10.1f} s  {name}")
    print(f"{sum(seconds.values()):10.1f} s  {len(seconds)} files of device code, which have 600 s of CPU time")
    device = section_bytes(binary, ".nv_fatbin")
    print(f"{device / 1e6:10.1f} MB device code in {binary.name}, at most {DEVICE_BYTES_MAX / 1e6:.0f}")
    return 0 if 0 < device <= DEVICE_BYTES_MAX and seconds else 1


if __name__ == "__main__":
    sys.exit(main())
