"""Runs an example guest, as a program and as a shared object, under every chunk schedule, and compares its output with
what it must be: guest_test.py echo|vector_add host|cuda PROGRAM HOST SHARED_OBJECT."""

import random
import struct
import subprocess
import sys

SCHEDULES = ["all-at-once", "one-byte", "powers-of-two", "crlf-adversary", "seeded-random", "seeded-random:77"]
SKIPPED = 77


def run(command, data):
    return subprocess.run(command, input=data, capture_output=True, timeout=300)


def has_device(command):
    """Without one, a session lists no vector_add."""
    done = run(command, bytes(8))
    return (done.returncode, done.stderr) != (1, b"error: trap 4: a host function failed\n")


def check(command, data, expected):
    done = run(command, data)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b""), (command, done.returncode, done.stderr)


def inputs(guest):
    """Pairs of input and output."""
    source = random.Random(5)
    if guest == "echo":
        lines = b"".join(bytes(source.choices(b"ab\r\n\0\xff", k=source.randrange(40))) for _ in range(300))
        return [(data, data) for data in (b"", b"\r\n", b"x" * 4096, b"y" * 4097, lines)]
    pairs = []
    for n in (0, 1, 1000):
        # Sums of multiples of 1/16 are exact.
        a, b = ([source.randrange(-(1 << 15), 1 << 15) / 16 for _ in range(n)] for _ in range(2))
        sums = [x + y for x, y in zip(a, b)]
        pairs.append((struct.pack(f"<{2 * n}f", *a, *b), struct.pack(f"<{n}f", *sums)))
    return pairs


def main():
    guest, backend, program, host, shared_object = sys.argv[1:]
    for command in ([program], [host, shared_object]):
        command = command + ["--backend", backend]
        if guest == "vector_add" and backend == "cuda" and not has_device(command):
            sys.exit(SKIPPED)
        for data, expected in inputs(guest):
            for schedule in SCHEDULES:
                check(command + ["--chunks", schedule], data, expected)

        for wrong in (["--chunks", "two-bytes"], ["--chunks", "one-byte:"], ["--chunks"], ["--sing", "1"]):
            assert run(command + wrong, b"").returncode == 2, wrong
        if guest == "vector_add":
            done = run(command, b"1234")
            assert (done.returncode, done.stderr) == (1, b"error: trap 1: out of bounds\n"), done
            done = run(command[:-1] + ["none"], bytes(8))
            assert (done.returncode, done.stderr) == (1, b"error: trap 4: a host function failed\n"), done


main()
