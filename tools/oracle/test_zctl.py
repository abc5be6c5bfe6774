"""Runs over ZCTL/1 against numpy: random shapes, strides and offsets through copy, vector_add and a manifest's kernel.

    test_zctl.py [CASES]

Serves the catalogue by the worker that `cargo` built (target/debug/worker-orcd, or the path in WORKER) and compares the
whole memory that a case uses after each run, so that a byte too many is found as well as a wrong one.
"""

import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import zctl_client  # noqa: E402

MEMORY = 8192  # bytes that cases use; descriptors lie in the first 1,024
FIRST = 1024
MANIFEST = '''{"manifest": 1, "modules": [], "kernels": [
  {"id": 500, "name": "broadcast_add", "builtin": "broadcast_add", "type": "f32"}]}'''


class Tensor:
    """A random view of floats: shape, strides in elements, and where it begins."""

    def __init__(self, shape: list[int], begin: int, room: int, is_written: bool):
        self.shape, self.strides = shape, []
        order = random.sample(range(len(shape)), len(shape))
        below = 1
        strides = {}
        for axis in order:
            strides[axis] = below * random.choice([1, 1, 1, 2]) if is_written or random.random() < 0.8 else 0
            below = max(below, 1 + sum((shape[a] - 1) * s for a, s in strides.items()))
        self.strides = [strides[axis] for axis in range(len(shape))]
        self.extent = 0 if 0 in shape else 1 + sum((d - 1) * s for d, s in zip(shape, self.strides))
        self.is_plain = random.random() < 0.3
        if self.is_plain:
            self.strides = [int(numpy.prod(shape[axis + 1 :])) for axis in range(len(shape))]
            self.extent = int(numpy.prod(shape))
        assert 4 * self.extent <= room
        self.begin = begin + random.randrange(room - 4 * self.extent + 1)

    def places(self) -> numpy.ndarray:
        """Byte offsets of the elements, in row-major order."""
        places = numpy.full(self.shape, self.begin, dtype=numpy.int64)
        for axis, (dim, stride) in enumerate(zip(self.shape, self.strides)):
            view = [1] * len(self.shape)
            view[axis] = dim
            places = places + 4 * stride * numpy.arange(dim).reshape(view)
        return places.reshape(-1)

    def descriptor(self, at: int) -> bytes:
        rank = len(self.shape)
        stride_off = 0 if self.is_plain else at + 32 + 4 * rank
        fields = struct.pack("<8I", 1, rank, 0, self.begin, 4 * self.extent, at + 32, stride_off, 0)
        return fields + struct.pack(f"<{rank}I{rank}i", *self.shape, *self.strides)


def read_floats(memory: bytearray, places: numpy.ndarray) -> numpy.ndarray:
    index = places[:, None] + numpy.arange(4)
    return numpy.frombuffer(memory, dtype=numpy.uint8)[index].reshape(-1).view("<f4")


def write_floats(memory: bytearray, places: numpy.ndarray, values: numpy.ndarray) -> None:
    data = values.astype("<f4").view(numpy.uint8).reshape(-1, 4)
    view = numpy.frombuffer(memory, dtype=numpy.uint8)
    view[places[:, None] + numpy.arange(4)] = data


def one_case(client: zctl_client.Client, ids: dict[str, int], number: int) -> int:
    rank = random.randrange(9)
    shape = [random.choice([1, 2, 3, 4] if rank < 5 else [1, 1, 2]) for _ in range(rank)]
    if random.random() < 0.05 and rank:
        shape[random.randrange(rank)] = 0
    while numpy.prod(shape) > 64:
        shape[shape.index(max(shape))] = 1
    name = random.choice(["copy", "vector_add", "broadcast_add"])
    shapes = [shape] * (2 if name == "copy" else 3)
    split = 0  # of broadcast_add: the axis where features begin
    if name == "broadcast_add":
        shape[:] = [max(1, dim) for dim in shape]
        split = 1 if rank == 2 else random.randrange(rank + 1)
        shapes[1] = shape[split:]
    inputs = len(shapes) - 1
    room = (MEMORY - FIRST) // 3
    tensors = []
    for i in range(inputs + 1):
        while True:
            try:
                tensors.append(Tensor(shapes[i], FIRST + i * room, room, i == inputs))
                break
            except AssertionError:
                continue
    memory = bytearray(random.randbytes(MEMORY))
    for tensor in tensors[:-1]:  # numbers without NaN
        places = tensor.places()
        write_floats(memory, places, numpy.random.randn(len(places)).astype("<f4"))
    args = []
    for i, tensor in enumerate(tensors):
        at = 300 * i + random.randrange(100)
        data = tensor.descriptor(at)
        memory[at : at + len(data)] = data
        args.append((11, at, 32, 0))
    count = int(numpy.prod(shape))
    rows, features = int(numpy.prod(shape[:split])), int(numpy.prod(shape[split:]))
    sizes = [rows, features] if name == "broadcast_add" else [count]
    args += [(random.choice([1, 2, 3, 4]), size, 0, 0) for size in sizes]

    expected = bytearray(memory)
    sums = read_floats(memory, tensors[0].places())
    if inputs == 2:
        sums = sums.reshape(-1, sizes[-1] or 1) + read_floats(memory, tensors[1].places())
    write_floats(expected, tensors[-1].places(), sums.reshape(-1))
    client.expect(zctl_client.MEM_WRITE, struct.pack("<Q", 0) + memory)
    code, message = client.run(ids[name], args)
    found = client.expect(zctl_client.MEM_READ, struct.pack("<QII", 0, MEMORY, 0))
    if code != 0 or found != bytes(expected):
        shapes = [(t.shape, t.strides, t.begin) for t in tensors]
        raise SystemExit(f"case {number}: {name} {shapes}: code {code} '{message}', or another memory")
    return count


def main() -> int:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    worker = pathlib.Path(os.environ.get("WORKER", ROOT / "target/debug/worker-orcd"))
    if not worker.exists():
        print(f"skipped: {worker} is not built")
        return 0
    random.seed(14)
    numpy.random.seed(14)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as manifest:
        manifest.write(MANIFEST)
        manifest.flush()
        command = [worker, "zctl", "serve", "--stdio", "--backend", "host", "--catalogue", "--manifest", manifest.name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client = zctl_client.Client(process.stdout, process.stdin)
        ids = {name: number for number, name, _, _ in client.kernels()}
    assert ids["broadcast_add"] == 500
    elements = sum(one_case(client, ids, number) for number in range(cases))
    process.stdin.close()
    if process.wait() != 0:
        raise SystemExit(f"the server ended with {process.returncode}")
    print(f"zctl: {cases} runs of {elements} elements equal numpy's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
