#!/usr/bin/env python3
"""A client and a server of ZCTL/1 and ZCL1 by docs/FORMATS.md; shares no code with the library, standard library only.

    zctl_client.py unix:PATH caps | info | kernels | describe ID | run ID ARG...
    zctl_client.py --spawn CMD ...
    zctl_client.py serve --stdio | --listen unix:PATH

ARG is i32:-5, u32:5, i64:-5, u64:5, f32:1.5, f64:1.5, bytes:@FILE (a buffer, in place) or out:FILE:BYTES. The server has
noop, tensor_add and vector_add in plain Python, and their buffers by ZCL1. As a module: Client, Session.
"""

import argparse
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import zlib

MAGIC, CAPABILITY_MAGIC = b"ZCTL", b"ZCL1"
HEADER = 32
STATUS_OK, MALFORMED, UNSUPPORTED, DENIED, TIMEOUT, NO_MEM, BACKEND, BAD_ARGS = range(8)
CAPS_LIST, KERNEL_LIST, KERNEL_RUN = 0x0001, 0x0101, 0x0102
MEM_WRITE, MEM_READ, MEM_INFO = 0x8001, 0x8002, 0x8003
HANDLE_READ, HANDLE_WRITE, HANDLE_END, KERNEL_DESCRIBE = 0x8011, 0x8012, 0x8013, 0x8021
DTYPES = ["f32", "f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4,
         "i64": 8, "u64": 8}  # fmt: skip
READS, WRITES = 1, 2


def checksum(frame: bytes) -> int:
    return zlib.crc32(frame[HEADER:], zlib.crc32(frame[:24] + bytes(4) + frame[28:HEADER]))


def with_checksum(frame: bytes) -> bytes:
    return frame[:24] + struct.pack("<I", checksum(frame)) + frame[28:]


def request_frame(op: int, payload: bytes, req_id: int = 0, timeout_ms: int = 0, crc: bool = False) -> bytes:
    frame = struct.pack("<4sHHIIIIII", MAGIC, 1, op, 0, req_id, len(payload), timeout_ms, 0, 0) + payload
    return with_checksum(frame) if crc else frame


# ---- client ----


class Refused(Exception):
    """A request that was answered with a status other than 0."""


class Client:
    """Speaks over two binary files, one to read and one to write."""

    def __init__(self, reader, writer, crc: bool = False):
        self.reader, self.writer, self.crc, self.req_id = reader, writer, crc, 0

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.reader.read(count - len(data))
            if not part:
                raise EOFError("the connection ended within a response")
            data += part
        return data

    def request(self, op: int, payload: bytes = b"", timeout_ms: int = 0) -> tuple[int, bytes]:
        self.req_id += 1
        self.writer.write(request_frame(op, payload, self.req_id, timeout_ms, self.crc))
        self.writer.flush()
        header = self.exactly(HEADER)
        magic, version, echoed, flags, req_id, status, length, crc, tail = struct.unpack("<4sHHIIIIII", header)
        if (magic, version, echoed, flags, req_id, tail) != (MAGIC, 1, op, 0, self.req_id, 0):
            raise ValueError("the response does not fit the request")
        payload = self.exactly(length)
        if crc and crc != checksum(header + payload):
            raise ValueError("the checksum of the response is wrong")
        return status, payload

    def expect(self, op: int, payload: bytes = b"") -> bytes:
        status, answer = self.request(op, payload)
        if status != STATUS_OK:
            raise Refused(f"op 0x{op:04x}: status {status}")
        return answer

    def capabilities(self) -> list[tuple[int, str]]:
        fields = Fields(self.expect(CAPS_LIST))
        return [(fields.u32(), fields.text()) for _ in range(fields.u32())]

    def kernels(self) -> list[tuple[int, str, int, int]]:
        fields = Fields(self.expect(KERNEL_LIST))
        return [(fields.u32(), fields.text(), fields.u64(), fields.u32()) for _ in range(fields.u32())]

    def describe(self, kernel_id: int) -> dict:
        fields = Fields(self.expect(KERNEL_DESCRIBE, struct.pack("<I", kernel_id)))
        result = {"sig_hash": fields.u64(), "flags": fields.u32(), "budget_ms": fields.u32()}
        result["parameters"] = [fields.text() for _ in range(fields.u32())]
        result["signature"] = fields.text()
        return result

    def info(self) -> dict:
        names = ["memory_bytes", "payload_bytes_max", "argument_count_max", "device_bytes_max", "budget_ms"]
        return dict(zip(names, struct.unpack("<QIIQII", self.expect(MEM_INFO))))

    def write_memory(self, offset: int, data: bytes) -> None:
        most = self.info()["payload_bytes_max"] - 8
        for i in range(0, len(data), most):
            self.expect(MEM_WRITE, struct.pack("<Q", offset + i) + data[i : i + most])

    def read_memory(self, offset: int, count: int) -> bytes:
        most = self.info()["payload_bytes_max"]
        starts = range(0, count, most)
        return b"".join(
            self.expect(MEM_READ, struct.pack("<QII", offset + i, min(most, count - i), 0)) for i in starts
        )

    def run(self, kernel_id: int, args: list[tuple[int, int, int, int]], timeout_ms: int = 0) -> tuple[int, str]:
        """Returns err_code and message; 0 after a run."""
        payload = struct.pack("<IIII", kernel_id, len(args), 0, 0) + b"".join(struct.pack("<IIII", *a) for a in args)
        status, answer = self.request(KERNEL_RUN, payload, timeout_ms)
        if status not in (STATUS_OK, TIMEOUT):
            raise Refused(f"run: status {status}")
        fields = Fields(answer)
        fields.u32()
        return fields.u32(), fields.text()


class Fields:
    """The fields of a payload, front to back."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError("a response ends within a field")
        self.at += count
        return self.data[self.at - count : self.at]

    def u32(self) -> int:
        return struct.unpack("<I", self.take(4))[0]

    def u64(self) -> int:
        return struct.unpack("<Q", self.take(8))[0]

    def text(self) -> str:
        return self.take(self.u32()).decode(errors="replace")


# ---- server ----


class Answer(Exception):
    """err_code and message of a run that is refused."""


class Parameter:
    """kind: a scalar's type, "buffer" or "bytes"; shape: functions of the integers by name."""

    def __init__(self, name, kind, dtype="", access=0, shape=(), layout_id=0):
        self.name, self.kind, self.dtype, self.access, self.shape = name, kind, dtype, access, shape
        self.layout_id = layout_id


class Kernel:
    def __init__(self, kernel_id, name, sig_hash, signature, parameters, body):
        self.id, self.name, self.sig_hash, self.signature = kernel_id, name, sig_hash, signature
        self.parameters, self.body = parameters, body


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def add_bits(a: int, b: int) -> int:
    """The bits of the f32 sum; of NaNs the first, made quiet."""
    for bits in (a, b):
        if bits & 0x7FFFFFFF > 0x7F800000:
            return bits | 0x400000
    x, y = struct.unpack("<ff", struct.pack("<II", a, b))
    if math.isinf(x) and math.isinf(y) and x != y:
        return 0xFFC00000
    total = x + y  # of two f32, a double rounds once, and then to f32 as the sum itself would
    try:
        return struct.unpack("<I", struct.pack("<f", total))[0]
    except OverflowError:
        return 0x7F800000 if total > 0 else 0xFF800000


def add(buffers, _scalars):
    a, b = (struct.unpack(f"<{len(x) // 4}I", x) for x in buffers[:2])
    return {2: struct.pack(f"<{len(a)}I", *map(add_bits, a, b))}


def sum_kernel(kernel_id: int, name: str, sig_hash: int | None) -> Kernel:
    count = (lambda values: values[3],)
    parameters = [Parameter(n, "buffer", "f32", access, count) for n, access in (("a", 1), ("b", 1), ("c", 2))]
    parameters.append(Parameter("n", "i64"))
    signature = "r f32[$3];r f32[$3];w f32[$3];i64;"
    return Kernel(kernel_id, name, fnv1a(signature) if sig_hash is None else sig_hash, signature, parameters, add)


KERNELS = [
    Kernel(1, "noop", 0, "", [], lambda *_: {}),
    sum_kernel(2, "tensor_add", 0xA1),
    sum_kernel(3, "vector_add", None),
]


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[1] > 0 and b[1] > 0 and a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


class Session:
    """One connection: its memory and its limits."""

    def __init__(self, memory_bytes=16 << 20, payload_max=1 << 20, args_max=64, rank_max=8, message_max=1024,
                 device_max=1 << 30, budget_ms=30000):  # fmt: skip
        self.memory = bytearray(memory_bytes)
        self.payload_max, self.args_max, self.rank_max, self.message_max = payload_max, args_max, rank_max, message_max
        self.device_max, self.budget_ms = device_max, budget_ms
        self.kernels = {kernel.id: kernel for kernel in KERNELS}
        self.capabilities = Capabilities(self)

    def serve(self, frame: bytes) -> bytes | None:
        """The answer to a frame of a connection; None: close."""
        if len(frame) >= 12 and frame[:4] == CAPABILITY_MAGIC:
            return self.capabilities.serve(frame)
        if len(frame) < HEADER or frame[:6] != MAGIC + b"\x01\x00":
            return None
        op, flags, req_id, length, _timeout, crc = struct.unpack("<HIIIII", frame[6:28])
        payload = frame[HEADER:]
        wrong_crc = crc != 0 and len(payload) == length and crc != checksum(frame)
        if len(payload) != length or length > self.payload_max or flags != 0 or wrong_crc:
            status, answer = MALFORMED, b""
        else:
            status, answer = self.answer(op, payload)
        if len(answer) > self.payload_max:
            status, answer = NO_MEM, b""
        response = struct.pack("<4sHHIIIIII", MAGIC, 1, op, 0, req_id, status, len(answer), 0, 0) + answer
        return with_checksum(response) if crc else response

    def answer(self, op: int, payload: bytes) -> tuple[int, bytes]:
        handlers = {CAPS_LIST: self.list_capabilities, KERNEL_LIST: self.list_kernels, KERNEL_RUN: self.run,
                    MEM_WRITE: self.write, MEM_READ: self.read, MEM_INFO: self.info, HANDLE_READ: self.handle_read,
                    HANDLE_WRITE: self.handle_write, HANDLE_END: self.handle_end,
                    KERNEL_DESCRIBE: self.describe}  # fmt: skip
        return handlers[op](payload) if op in handlers else (UNSUPPORTED, b"")

    def list_capabilities(self, _payload):
        names = [b"cuda.kernel.list", b"cuda.kernel.run", b"wcuda.remote"]
        return STATUS_OK, struct.pack("<I", 3) + b"".join(
            struct.pack("<II", i + 1, len(name)) + name for i, name in enumerate(names)
        )

    def list_kernels(self, payload):
        if len(payload) not in (0, 4):
            return MALFORMED, b""
        if payload and struct.unpack("<I", payload)[0] > 3:
            return BAD_ARGS, b""
        answer = struct.pack("<I", len(self.kernels))
        for _, kernel in sorted(self.kernels.items()):
            name = kernel.name.encode()
            answer += struct.pack("<II", kernel.id, len(name)) + name + struct.pack("<QI", kernel.sig_hash, 0)
        return STATUS_OK, answer

    def write(self, payload):
        if len(payload) < 8:
            return MALFORMED, b""
        offset = struct.unpack("<Q", payload[:8])[0]
        if offset + len(payload) - 8 > len(self.memory):
            return MALFORMED, b""
        self.memory[offset : offset + len(payload) - 8] = payload[8:]
        return STATUS_OK, b""

    def read(self, payload):
        if len(payload) != 16:
            return MALFORMED, b""
        offset, length, zero = struct.unpack("<QII", payload)
        if zero != 0 or offset + length > len(self.memory):
            return MALFORMED, b""
        if length > self.payload_max:
            return NO_MEM, b""
        return STATUS_OK, bytes(self.memory[offset : offset + length])

    def info(self, payload):
        if payload:
            return MALFORMED, b""
        return STATUS_OK, struct.pack(
            "<QIIQII", len(self.memory), self.payload_max, self.args_max, self.device_max, self.budget_ms, 0
        )

    def handle_read(self, payload):
        if len(payload) != 8:
            return MALFORMED, b""
        handle, cap = struct.unpack("<iI", payload)
        data = self.capabilities.read(handle, min(cap, max(self.payload_max - 4, 0)))
        return STATUS_OK, struct.pack("<i", -1) if data is None else struct.pack("<i", len(data)) + data

    def handle_write(self, payload):
        if len(payload) < 4:
            return MALFORMED, b""
        handle = struct.unpack("<i", payload[:4])[0]
        return STATUS_OK, struct.pack("<i", self.capabilities.write(handle, payload[4:]))

    def handle_end(self, payload):
        if len(payload) != 4:
            return MALFORMED, b""
        self.capabilities.handles.pop(struct.unpack("<i", payload)[0], None)
        return STATUS_OK, b""

    def describe(self, payload):
        if len(payload) != 4:
            return MALFORMED, b""
        kernel = self.kernels.get(struct.unpack("<I", payload)[0])
        if not kernel:
            return BAD_ARGS, b""
        answer = struct.pack("<QIII", kernel.sig_hash, 0, 0, len(kernel.parameters))
        for text in [parameter.name for parameter in kernel.parameters] + [kernel.signature]:
            answer += struct.pack("<I", len(text)) + text.encode()
        return STATUS_OK, answer

    # ---- KERNEL_RUN ----

    def run(self, payload):
        if self.payload_max < 12:
            return NO_MEM, b""
        try:
            self.run_or_refuse(payload)
            code, message = STATUS_OK, b""
        except Answer as refused:
            code, text = refused.args
            message = text.encode()[: min(self.message_max, self.payload_max - 12)]
        return STATUS_OK, struct.pack("<III", code == STATUS_OK, code, len(message)) + message

    def run_or_refuse(self, payload):
        if len(payload) < 16:
            raise Answer(MALFORMED, "payload too small")
        kernel_id, count, base, reserved = struct.unpack("<IIII", payload[:16])
        if reserved != 0:
            raise Answer(MALFORMED, "reserved is not 0")
        if count > self.args_max:
            raise Answer(BAD_ARGS, f"{count} args, at most {self.args_max}")
        if len(payload) < 16 + 16 * count:
            raise Answer(MALFORMED, "args truncated")
        kernel = self.kernels.get(kernel_id)
        if not kernel:
            raise Answer(BAD_ARGS, "kernel id not found")
        if count != len(kernel.parameters):
            raise Answer(BAD_ARGS, f"{count} args, the kernel takes {len(kernel.parameters)}")
        args = [struct.unpack("<IIII", payload[16 + 16 * i : 32 + 16 * i]) for i in range(count)]
        if kernel_id == 2 and all(arg[0] not in (10, 11) for arg in args):
            self.run_sizes(args)
            return
        self.run_on_memory(kernel, args, base)

    def check_device_bytes(self, count):
        if count > self.device_max:
            raise Answer(NO_MEM, f"{count} bytes of device memory, at most {self.device_max}")

    def run_sizes(self, args):
        if any(arg[0] != 2 for arg in args):
            raise Answer(BAD_ARGS, "expected u32 size args")
        n = args[3][1]
        for i, arg in enumerate(args):
            if arg[2] or arg[3]:
                raise Answer(BAD_ARGS, f"arg {i}: a word that is not used is not 0")
            if arg[1] < n:
                raise Answer(BAD_ARGS, f"arg {i}: {arg[1]} elements, {n} are needed")
        self.check_device_bytes(12 * n)

    def run_on_memory(self, kernel, args, base):
        values, broken = {}, set()
        for i, (arg, parameter) in enumerate(zip(args, kernel.parameters)):
            if parameter.kind[0] in "iu":
                try:
                    values[i] = integer(arg, parameter.kind)
                except Answer:
                    broken.add(i)
        operands = [
            self.operand(i, arg, parameter, base, values, broken)
            for i, (arg, parameter) in enumerate(zip(args, kernel.parameters))
        ]
        for i, written in enumerate(operands):
            if not (written and written["access"] & WRITES):
                continue
            for j, other in enumerate(operands):
                if not other:
                    continue
                if i != j and overlap(written["data"], other["data"]):
                    raise Answer(BAD_ARGS, f"arg {i}: overlaps arg {j}")
                for what in ("descriptor", "shape", "strides"):
                    if what in other and overlap(written["data"], other[what]):
                        raise Answer(BAD_ARGS, f"arg {i}: overlaps the {what} of arg {j}")
        self.check_device_bytes(sum(len(o["places"]) * o["size"] for o in operands if o))
        inputs = [self.gather(operand) if operand else None for operand in operands]
        for i, data in kernel.body(inputs, values).items():
            operand = operands[i]
            for k, place in enumerate(operand["places"]):
                size = operand["size"]
                self.memory[place : place + size] = data[k * size : (k + 1) * size]

    def gather(self, operand) -> bytes:
        return b"".join(bytes(self.memory[place : place + operand["size"]]) for place in operand["places"])

    def inside(self, window) -> bool:
        return window[0] + window[1] <= len(self.memory)

    def operand(self, i, arg, parameter, base, values, broken):
        kind, a, b, c = arg
        takes = {"buffer": (10, 11, 12), "bytes": (10, 12), "f32": (2, 5), "f64": (4, 6), "f16": (2,), "bf16": (2,)}
        if kind not in takes.get(parameter.kind, (1, 2, 3, 4)):
            raise Answer(BAD_ARGS, f"arg {i}: kind {kind}, the parameter is {parameter.kind}")
        if unused(arg):
            raise Answer(BAD_ARGS, f"arg {i}: a word that is not used is not 0")
        if parameter.kind != "buffer":
            if parameter.kind[0] in "iu" and i in broken:
                raise Answer(BAD_ARGS, f"arg {i}: the value does not fit {parameter.kind}")
            return None
        result = {"access": parameter.access, "size": SIZES[parameter.dtype]}
        if kind == 11:
            self.tensor(i, arg, parameter, base, result)
        else:
            if kind == 12 and (c == 0 or c != parameter.layout_id):
                raise Answer(BAD_ARGS, f"arg {i}: layout_id {c}, the parameter's is {parameter.layout_id}")
            result["data"] = (base + a, b)
            if not self.inside(result["data"]):
                raise Answer(MALFORMED, f"arg {i}: the bytes are outside the memory")
            if b % result["size"]:
                raise Answer(BAD_ARGS, f"arg {i}: {b} bytes, an element has {result['size']}")
            result["shape_of"] = None
            result["count"] = b // result["size"]
        if not broken:
            self.check_shape(i, parameter, result, values)
        if kind == 11:
            result["places"] = places(result)
        else:
            result["places"] = range(base + a, base + a + b, result["size"])
        return result

    def check_shape(self, i, parameter, operand, values):
        dims = [dimension(values) for dimension in parameter.shape]
        if any(dim >= 1 << 63 for dim in dims):
            raise Answer(BAD_ARGS, f"arg {i}: the parameter's shape has no value")
        product = math.prod(dims)
        if all(dim > 0 for dim in dims) and product * operand["size"] >= 1 << 48:
            raise Answer(BAD_ARGS, f"arg {i}: the parameter's shape has no value")
        shape = operand["shape_of"]
        differs = shape is not None and len(shape) == len(dims) and shape != dims
        if any(dim < 0 for dim in dims) or operand["count"] != product or differs:
            raise Answer(BAD_ARGS, f"arg {i}: the shape is not the parameter's")

    def tensor(self, i, arg, parameter, base, result):
        _, a, b, _ = arg
        if b != 32:
            raise Answer(BAD_ARGS, f"arg {i}: descriptor of {b} bytes, 32 are needed")
        result["descriptor"] = (base + a, 32)
        if not self.inside(result["descriptor"]):
            raise Answer(MALFORMED, f"arg {i}: the descriptor is outside the memory")
        fields = struct.unpack("<8I", self.memory[base + a : base + a + 32])
        dtype, rank, flags, data_off, data_len, shape_off, stride_off, reserved = fields
        wanted = DTYPES.index(parameter.dtype) + 1
        if dtype != wanted:
            raise Answer(BAD_ARGS, f"arg {i}: dtype {dtype}, the parameter's is {wanted}")
        if rank > self.rank_max:
            raise Answer(BAD_ARGS, f"arg {i}: rank {rank}, at most {self.rank_max}")
        if flags > 3:
            raise Answer(BAD_ARGS, f"arg {i}: flags {flags}, at most 3")
        if flags and parameter.access & ~flags:
            raise Answer(BAD_ARGS, f"arg {i}: flags {flags}, the kernel's access is {parameter.access}")
        if reserved:
            raise Answer(BAD_ARGS, f"arg {i}: reserved is not 0")
        shape, strides = [], []
        if rank:
            result["shape"] = (base + shape_off, 4 * rank)
            if not self.inside(result["shape"]):
                raise Answer(MALFORMED, f"arg {i}: the shape is outside the memory")
        if rank and stride_off:
            result["strides"] = (base + stride_off, 4 * rank)
            if not self.inside(result["strides"]):
                raise Answer(MALFORMED, f"arg {i}: the strides are outside the memory")
        if not self.inside((base + data_off, data_len)):
            raise Answer(MALFORMED, f"arg {i}: the data is outside the memory")
        if rank:
            begin = base + shape_off
            shape = list(struct.unpack(f"<{rank}I", self.memory[begin : begin + 4 * rank]))
        if "strides" in result:
            begin = base + stride_off
            strides = list(struct.unpack(f"<{rank}i", self.memory[begin : begin + 4 * rank]))
            if any(stride < 0 for stride in strides):
                raise Answer(BAD_ARGS, f"arg {i}: a stride is negative")
        else:
            strides = [math.prod(shape[k + 1 :]) for k in range(rank)]
        count = math.prod(shape)
        extent = 0 if count == 0 else 1 + sum((d - 1) * s for d, s in zip(shape, strides))
        if extent * result["size"] > data_len:
            raise Answer(BAD_ARGS, f"arg {i}: data_len is less than the tensor needs")
        if parameter.access & WRITES and count:
            below = 1
            for stride, dim in sorted((s, d) for s, d in zip(strides, shape) if d > 1):
                if stride < below:
                    raise Answer(BAD_ARGS, f"arg {i}: two elements share a place")
                below += (dim - 1) * stride
        result.update(shape_of=shape, strides_of=strides, count=count)
        result["data"] = (base + data_off, extent * result["size"])


MESSAGES = {
    "t_ctl_bad_frame": "bad frame form", "t_ctl_bad_version": "bad frame version",
    "t_ctl_unknown_op": "unknown operation", "t_ctl_timeout": "operation timed out", "t_ctl_overflow": "over a limit",
    "t_ctl_bad_params": "bad parameters", "t_cap_missing": "capability not available",
    "t_cap_denied": "not permitted", "t_accel_no_device": "no such device",
    "t_accel_kernel_not_found": "no such kernel", "t_accel_launch_failed": "launch failed",
    "t_accel_invalid_handle": "no such handle", "t_accel_copy_failed": "copy failed",
}  # fmt: skip


class Trace(Exception):
    """Why a request of ZCL1 fails: the trace, and its cause."""


class Payload:
    """Reads a payload field by field; done() refuses missing and left-over bytes."""

    def __init__(self, data: bytes):
        self.data, self.at, self.failed = data, 0, False

    def take(self, count: int) -> bytes:
        self.failed = self.failed or self.at + count > len(self.data)
        if self.failed:
            return b""
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, width: int = 4) -> int:
        return int.from_bytes(self.take(width), "little")

    def bytes(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        return self.bytes().decode(errors="replace")

    def check(self) -> None:
        if self.failed:
            raise Trace("t_ctl_bad_params")

    def done(self) -> None:
        if self.failed or self.at != len(self.data):
            raise Trace("t_ctl_bad_params")


class Handle:
    def __init__(self, record=b"", buffer=None, flags=0, ready=0):
        # A record is known once `ready` pieces of work have run.
        self.record, self.buffer, self.flags, self.ready = record, buffer, flags, ready
        self.read_at = self.write_at = 0


class Capabilities:
    """ZCL1 of one connection, with a device of backend "host". Work waits in a queue for whoever waits for it."""

    def __init__(self, session: Session):
        self.session = session
        self.handles, self.next_handle = {}, 4
        self.streams, self.events, self.next_stream = set(), {}, 1
        self.queue, self.ran = [], 0  # the queue's first is number `ran` of all

    def serve(self, frame: bytes) -> bytes | None:
        op, rid = struct.unpack("<HI", frame[6:12])
        try:
            payload = b"\1\0\0\0" + self.answer(op, frame)
            if len(payload) > self.session.payload_max:
                raise Trace("t_ctl_overflow")
        except Trace as refused:
            trace, cause = refused.args[0], b"".join(refused.args[1:])
            payload = bytes(4) + b"".join(map(hbytes, (trace.encode(), MESSAGES[trace].encode(), cause)))
        if len(payload) + 20 > self.session.payload_max + 32:
            return None
        return struct.pack("<4sHHIII", CAPABILITY_MAGIC, 1, op, rid, 0, len(payload)) + payload

    def answer(self, op: int, frame: bytes) -> bytes:
        if frame[4:6] != b"\1\0":
            raise Trace("t_ctl_bad_version")
        if len(frame) < 24:
            raise Trace("t_ctl_bad_frame")
        timeout, flags, length = struct.unpack("<III", frame[12:24])
        if length > self.session.payload_max:
            raise Trace("t_ctl_overflow")
        if length != len(frame) - 24 or flags:
            raise Trace("t_ctl_bad_frame")
        fields = Payload(frame[24:])
        if op == 1:
            fields.done()
            return struct.pack("<I", 2) + b"".join(
                hbytes(kind) + hbytes(b"default") + struct.pack("<II", 13, 0) for kind in (b"accel", b"accel.ext")
            )
        if op == 2:
            kind = self.capability(fields)
            return struct.pack("<I", 13) + hbytes(self.schema(kind))
        if op == 3:
            rest = []
            kind = self.capability(fields, rest)
            if len(self.handles) >= 1024:
                raise Trace("t_ctl_overflow")
            mode, params = rest[0], Payload(rest[1])
            modes = {"accel": (self.query, self.make_buffer, self.submit, self.sync),
                     "accel.ext": (self.make_stream, self.end_stream, self.make_event, self.record_event,
                                   self.wait_event, self.copy, self.load, self.unload)}[kind]  # fmt: skip
            if not 1 <= mode <= len(modes):
                raise Trace("t_ctl_bad_params")
            handle = modes[mode - 1](params, timeout)
            if isinstance(handle, bytes):
                handle = Handle(handle)
            number, self.next_handle = self.next_handle, self.next_handle + 1
            self.handles[number] = handle
            hflags = 7 if handle.buffer is not None and not handle.flags & 2 else 5
            return struct.pack("<III", number, hflags, 0)
        raise Trace("t_ctl_unknown_op")

    def capability(self, fields: Payload, rest: list | None = None) -> str:
        kind, name = fields.text(), fields.text()
        if rest is not None:
            rest += [fields.number(), fields.bytes()]
        fields.done()
        if name != "default" or kind not in ("accel", "accel.ext"):
            raise Trace("t_cap_missing")
        return kind

    def schema(self, kind: str) -> bytes:
        if kind == "accel":
            known = {"backends": ["host"], "id": "cap.accel.v1", "max_arg_count": self.session.args_max,
                     "max_buffer_bytes": self.session.device_max, "max_inline_arg_bytes": 256,
                     "max_module_bytes": 10 << 20, "module_registry": ["preload"]}  # fmt: skip
        else:
            known = {"id": "cap.accel.ext.v1", "max_events": 256, "max_streams": 64,
                     "modes": ["stream.create", "stream.destroy", "event.create", "event.record", "event.wait",
                               "buffer.copy", "module.load", "module.unload"]}  # fmt: skip
        return json.dumps(known, separators=(",", ":")).encode()

    # ---- handles ----

    def read(self, number: int, cap: int) -> bytes | None:
        handle = self.handles.get(number)
        if handle is None:
            return None
        if cap == 0:
            return b""
        data = handle.record if handle.buffer is None else handle.buffer
        if handle.read_at < len(data):
            self.run_until(handle.ready if handle.buffer is None else len(self.queue) + self.ran)
        part = bytes(data[handle.read_at : handle.read_at + cap])
        handle.read_at += len(part)
        return part

    def write(self, number: int, data: bytes) -> int:
        handle = self.handles.get(number)
        if handle is None or handle.buffer is None or handle.flags & 2:
            return -1
        if handle.write_at + len(data) > len(handle.buffer):
            return -1
        if data:
            self.run_until(len(self.queue) + self.ran)
        handle.buffer[handle.write_at : handle.write_at + len(data)] = data
        handle.write_at += len(data)
        return len(data)

    def buffer(self, number: int) -> Handle | None:
        handle = self.handles.get(number)
        return handle if handle and handle.buffer is not None else None

    def run_until(self, count: int) -> None:
        while self.ran < count:
            self.queue.pop(0)()
            self.ran += 1

    def put(self, work, trace: str) -> int:
        if len(self.queue) >= 256:
            raise Trace(trace, b"256 submissions are at work")
        self.queue.append(work)
        return self.ran + len(self.queue)

    # ---- modes ----

    def target(self, fields: Payload) -> tuple[str, str]:
        return fields.text(), fields.text()

    def check(self, fields: Payload, target: tuple[str, str]) -> None:
        fields.done()
        if target[0] not in ("cuda", "host"):
            raise Trace("t_ctl_bad_params")
        if target != ("host", "0"):
            raise Trace("t_accel_no_device")

    def query(self, fields, _timeout):
        backend = fields.text()
        fields.done()
        if backend not in ("cuda", "host"):
            raise Trace("t_ctl_bad_params")
        if backend == "cuda":
            return bytes(4)
        return struct.pack("<I", 1) + hbytes(b"0") + hbytes(b"Python") + struct.pack("<QII", 0, 1, 0)

    def make_buffer(self, fields, _timeout):
        target, size, flags = self.target(fields), fields.number(8), fields.number()
        self.check(fields, target)
        if size == 0 or flags > 7 or flags & 3 == 3:
            raise Trace("t_ctl_bad_params")
        used = sum(len(handle.buffer) for handle in self.handles.values() if handle.buffer is not None)
        if size > self.session.device_max - used:
            raise Trace("t_ctl_overflow")
        return Handle(buffer=bytearray(size), flags=flags)

    def submit(self, fields, timeout):
        target, module, name = self.target(fields), fields.text(), fields.text()
        launch = [fields.number() for _ in range(7)]
        count = fields.number()
        fields.check()
        if count > self.session.args_max:
            raise Trace("t_ctl_overflow")
        args = [self.argument(fields) for _ in range(count)]
        fields.number()  # budget_ms
        self.check(fields, target)
        kernel = next((kernel for kernel in KERNELS if kernel.name == name), None)
        if module != "wcuda" or kernel is None:
            raise Trace("t_accel_kernel_not_found")
        if any(launch) or len(args) != len(kernel.parameters):
            raise Trace("t_ctl_bad_params")
        work = self.sum_of(args) if args else lambda: None
        ready = self.put(work, "t_accel_launch_failed")
        if timeout:
            self.run_until(ready)
        return Handle(b"\0", ready=ready)

    def argument(self, fields: Payload):
        kind, zero, flags, value = fields.number(1), fields.number(1), fields.number(2), fields.bytes()
        if fields.failed or zero or flags:
            raise Trace("t_ctl_bad_params")
        if kind == 1:
            if len(value) > 256:
                raise Trace("t_ctl_overflow")
            return value
        buffer = self.buffer(struct.unpack("<i", value)[0]) if kind == 2 and len(value) == 4 else None
        if buffer is None:
            raise Trace("t_ctl_bad_params")
        return buffer

    def sum_of(self, args):
        *buffers, n = args
        if any(isinstance(each, bytes) for each in buffers) or not isinstance(n, bytes) or len(n) != 8:
            raise Trace("t_ctl_bad_params")
        count = struct.unpack("<q", n)[0]
        a, b, c = buffers
        if count < 0 or any(len(each.buffer) < 4 * count for each in buffers):
            raise Trace("t_ctl_bad_params")
        if a.flags & 2 or b.flags & 2 or c.flags & 1:
            raise Trace("t_ctl_bad_params")

        def work():
            inputs = [bytes(each.buffer[: 4 * count]) for each in (a, b)]
            c.buffer[: 4 * count] = add(inputs, {})[2]

        return work

    def sync(self, fields, timeout):
        target, queue = self.target(fields), fields.text()
        self.check(fields, target)
        if queue != "default":
            raise Trace("t_ctl_bad_params")
        if self.queue and timeout == 0:
            raise Trace("t_ctl_timeout")
        self.run_until(self.ran + len(self.queue))
        return b"\1"

    def make_stream(self, fields, _timeout):
        target, flags = self.target(fields), fields.number()
        self.check(fields, target)
        if flags > 2:
            raise Trace("t_ctl_bad_params")
        if len(self.streams) >= 64:
            raise Trace("t_ctl_overflow")
        self.streams.add(self.next_stream)
        self.next_stream += 1
        return struct.pack("<I", self.next_stream - 1)

    def end_stream(self, fields, _timeout):
        target, stream = self.target(fields), fields.number()
        self.check(fields, target)
        if stream not in self.streams:
            raise Trace("t_accel_invalid_handle")
        self.streams.remove(stream)
        return b"\1"

    def make_event(self, fields, _timeout):
        target, flags = self.target(fields), fields.number()
        self.check(fields, target)
        if flags > 1:
            raise Trace("t_ctl_bad_params")
        if len(self.events) >= 256:
            raise Trace("t_ctl_overflow")
        self.events[len(self.events) + 1] = 0
        return struct.pack("<I", len(self.events))

    def event(self, fields, target, stream, event):
        self.check(fields, target)
        if (stream != 0 and stream not in self.streams) or event not in self.events:
            raise Trace("t_accel_invalid_handle")

    def record_event(self, fields, _timeout):
        target, stream, event = self.target(fields), fields.number(), fields.number()
        self.event(fields, target, stream, event)
        self.events[event] = self.ran + len(self.queue) if stream == 0 else 0
        return b"\1"

    def wait_event(self, fields, timeout):
        target, stream, event, own = self.target(fields), fields.number(), fields.number(), fields.number()
        self.event(fields, target, stream, event)
        if min(timeout, own):
            self.run_until(self.events[event])
        return b"\1" if self.ran >= self.events[event] else b"\0"

    def copy(self, fields, _timeout):
        target, numbers = self.target(fields), (fields.number(), fields.number())
        size, flags = fields.number(8), fields.number()
        self.check(fields, target)
        source, goal = map(self.buffer, numbers)
        if source is None or goal is None:
            raise Trace("t_accel_invalid_handle")
        if flags > 1 or source is goal or goal.flags & 2 or size > min(len(source.buffer), len(goal.buffer)):
            raise Trace("t_ctl_bad_params")

        def work():
            goal.buffer[:size] = source.buffer[:size]

        if size:
            self.put(work, "t_accel_copy_failed")
        return b"\1"

    def load(self, fields, _timeout):
        target, _code, _hint = self.target(fields), fields.bytes(), fields.bytes()
        self.check(fields, target)
        raise Trace("t_cap_denied")

    def unload(self, fields, _timeout):
        target, _module = self.target(fields), fields.bytes()
        self.check(fields, target)
        raise Trace("t_accel_invalid_handle")


def hbytes(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


class places:
    """The offsets of a tensor's elements in row-major order, computed as they are asked for."""

    def __init__(self, operand):
        self.operand = operand

    def __len__(self):
        return self.operand["count"]

    def __iter__(self):
        operand = self.operand
        shape, strides, size = operand["shape_of"], operand["strides_of"], operand["size"]
        for number in range(operand["count"]):
            offset = 0
            for dim, stride in zip(reversed(shape), reversed(strides)):
                number, index = divmod(number, dim)
                offset += index * stride
            yield operand["data"][0] + offset * size


def unused(arg) -> bool:
    """Whether a word that the kind does not name is not 0."""
    kind, _, b, c = arg
    if kind in (1, 2, 5):
        return bool(b or c)
    return kind != 12 and bool(c)


def integer(arg, kind: str) -> int:
    wire, a, b, _ = arg
    if wire not in (1, 2, 3, 4) or unused(arg):
        raise Answer(BAD_ARGS, "")
    value = a if wire in (1, 2) else a | b << 32
    if wire in (1, 3):
        bits = 32 if wire == 1 else 64
        value -= (value >> (bits - 1)) << bits
    bits = int(kind[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise Answer(BAD_ARGS, "")
    return value


def read_exactly(reader, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = reader.read(count - len(data))
        if not part:
            return data
        data += part
    return data


def serve_stream(reader, writer, session: Session) -> None:
    while True:
        header = read_exactly(reader, 24)
        if len(header) < 24:
            return
        if header[:4] == CAPABILITY_MAGIC:
            length = struct.unpack("<I", header[20:24])[0]
        else:
            header += read_exactly(reader, HEADER - 24)
            if len(header) < HEADER or header[:6] != MAGIC + b"\x01\x00":
                return
            length = struct.unpack("<I", header[16:20])[0]
        is_long = length > session.payload_max
        payload = b"" if is_long else read_exactly(reader, length)
        if not is_long and len(payload) < length:
            return
        answer = session.serve(header + payload)
        if answer is None:
            return
        writer.write(answer)
        writer.flush()
        if is_long:
            return


def serve_socket(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    listener.bind(path)
    os.umask(old)
    listener.listen()
    print(f"listening on unix:{path}", flush=True)

    def one(connection):
        with connection, connection.makefile("rb") as reader, connection.makefile("wb") as writer:
            try:
                serve_stream(reader, writer, Session())
            except (BrokenPipeError, ConnectionResetError):
                pass

    threading.Thread(target=lambda: (sys.stdin.read(), os.unlink(path), os._exit(0)), daemon=True).start()
    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()


# ---- command line ----


def value_argument(word: str) -> tuple[int, int, int, int]:
    kind, text = word.split(":", 1)
    if kind == "f32":
        return 5, *struct.unpack("<I", struct.pack("<f", float(text))), 0, 0
    if kind == "f64":
        return 6, *struct.unpack("<II", struct.pack("<d", float(text))), 0
    number, wide = int(text), kind in ("i64", "u64")
    bits = number % (1 << (64 if wide else 32))
    return {"i32": 1, "u32": 2, "i64": 3, "u64": 4}[kind], bits & 0xFFFFFFFF, bits >> 32, 0


def run_command(client: Client, kernel_id: int, words: list[str]) -> int:
    args, outputs, at = [], [], 0
    for word in words:
        if word.startswith("bytes:@") or word.startswith("out:"):
            if word.startswith("out:"):
                path, count = word[4:].rsplit(":", 1)
                outputs.append((path, at, int(count)))
                data = bytes(int(count))
            else:
                data = open(word[7:], "rb").read()
            client.write_memory(at, data)
            args.append((10, at, len(data), 0))
            at = (at + len(data) + 63) // 64 * 64
        else:
            args.append(value_argument(word))
    code, message = client.run(kernel_id, args)
    if code:
        print(f"error: {message} (code {code})", file=sys.stderr)
        return 1
    for path, offset, count in outputs:
        open(path, "wb").write(client.read_memory(offset, count))
    return 0


def call(options) -> int:
    words = options.words
    if options.spawn:
        process = subprocess.Popen(options.spawn, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client = Client(process.stdout, process.stdin, options.crc)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(words.pop(0).removeprefix("unix:"))
        client = Client(connection.makefile("rb"), connection.makefile("wb"), options.crc)
    command, rest = words[0], words[1:]
    if command == "run":
        return run_command(client, int(rest[0]), rest[1:])
    answers = {"caps": client.capabilities, "kernels": client.kernels, "info": client.info}
    answer = client.describe(int(rest[0])) if command == "describe" else answers[command]()
    print(json.dumps(answer))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spawn")
    parser.add_argument("--crc", action="store_true")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--listen")
    parser.add_argument("--memory", type=int, default=16 << 20, help="bytes of a connection on stdio")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    if options.words != ["serve"]:
        return call(options)
    if options.listen:
        serve_socket(options.listen.removeprefix("unix:"))
    serve_stream(sys.stdin.buffer, sys.stdout.buffer, Session(options.memory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
