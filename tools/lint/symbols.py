"""What the archive shows and calls: symbols.py ARCHIVE.

Outside-visible names of our objects are wcuda_… only; none of our objects calls what ends the process,
prints, or reads the environment.
"""

import re
import subprocess
import sys

# A library that never hurts its host calls none of these (assert() comes as __assert_fail). The compiler
# itself names std::terminate in functions declared noexcept.
FORBIDDEN = {
    "abort", "exit", "_exit", "quick_exit", "__assert_fail", "printf", "puts",
    "putchar", "perror", "__printf_chk", "stdout", "stderr", "_ZSt4cout", "_ZSt4cerr", "_ZSt4clog",
    "getenv", "secure_getenv", "setlocale", "signal", "sigaction",
}  # fmt: skip
# Host stubs of kernels and the runtime's registration, which nvcc writes itself.
FROM_NVCC = re.compile(r"^(__cuda|__nv|__fatbin|_fatbin|fatbin)")


def members(archive: str) -> list[tuple[str, str, str]]:
    """(object, kind letter of nm, symbol) of each external symbol."""
    text = subprocess.run(
        ["nm", "--extern-only", "--print-file-name", archive],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    rows = []
    for line in text.splitlines():
        place, _, rest = line.partition(": ") if ": " in line else line.partition(":")
        fields = rest.split()
        if len(fields) >= 2:
            rows.append((place.split(":")[-1], fields[-2], fields[-1]))
    return rows


def visible(archive: str) -> set[str]:
    """Names whose visibility is DEFAULT in the symbol tables, weak template instances apart."""
    text = subprocess.run(
        ["readelf", "--symbols", "--wide", archive], check=True, capture_output=True, text=True
    ).stdout
    names = set()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[5] == "DEFAULT" and fields[4] == "GLOBAL":
            if fields[6] != "UND":
                names.add(fields[7])
    return names


def main() -> int:
    archive = sys.argv[1]
    rows = members(archive)
    found = [
        f"{name} calls {symbol.split('@')[0]}"
        for name, kind, symbol in rows
        if kind == "U" and symbol.split("@")[0] in FORBIDDEN
    ]
    found += [
        f"{name} is visible outside: not wcuda_…"
        for name in sorted(visible(archive))
        if not name.startswith("wcuda_") and not FROM_NVCC.match(name)
    ]
    exported = {symbol for _, kind, symbol in rows if kind == "T" and symbol.startswith("wcuda_")}
    print("\n".join(found) or f"symbols: {len(exported)} functions wcuda_…, nothing else visible")
    return 1 if found or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
