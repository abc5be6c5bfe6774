"""Teaches the `gguf` package (0.19) the tensor types that it lacks: dequantizers of Q1_0 and Q2_0."""

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

_Quant = getattr(quants, "__Quant")


def _ensure_type(name, number, sizes):
    if name not in GGMLQuantizationType.__members__:
        member = int.__new__(GGMLQuantizationType, number)
        member._name_, member._value_ = name, number
        GGMLQuantizationType._member_map_[name] = member
        GGMLQuantizationType._value2member_map_[number] = member
    GGML_QUANT_SIZES.setdefault(GGMLQuantizationType(number), sizes)
    return GGMLQuantizationType(number)


def _scale_and_codes(blocks, bits):
    """(n, 1) f32 scales and (n, elements) f32 codes of `bits` bits, the first lowest in its byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (blocks[:, 2:, None] >> shifts) & np.uint8((1 << bits) - 1)
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    return scale, codes.reshape(blocks.shape[0], -1).astype(np.float32)


class _WithoutQuantizer(_Quant, qtype=_ensure_type("Q1_0", 41, (128, 18))):
    """Q1_0: the scale with the sign of a bit."""

    @classmethod
    def quantize_blocks(cls, blocks):
        raise NotImplementedError

    @classmethod
    def dequantize_blocks(cls, blocks):
        scale, codes = _scale_and_codes(blocks, 1)
        return scale * (2 * codes - 1)


class _Q2_0(_WithoutQuantizer, qtype=_ensure_type("Q2_0", 42, (64, 18))):
    """Q2_0: the scale times -1, 0, 1 or 2."""

    @classmethod
    def dequantize_blocks(cls, blocks):
        scale, codes = _scale_and_codes(blocks, 2)
        return scale * (codes - 1)
