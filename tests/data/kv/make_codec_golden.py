#!/usr/bin/env python3
"""Writes codec_golden.txt: sections of every KV format, computed with NumPy from the rules in
common/kv/codec.h, independently of the C++ code (float8 through ml_dtypes). Inputs come from `inputs()`, which
tests/unit/kv/codec_test.cc repeats bit for bit. One line a case: format side head_dim pattern hex."""
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np

TOKENS, GROUP = 16, 32
CANDIDATES = [(0, 64), (0, 62), (30, 62), (15, 62), (15, 63), (0, 63)]
SPECIALS = [0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000, 0, 0x7F7FFFFF, 0x477FE000, 0xC77FE000,
            0x33800000, 0x337FFFFF, 0x00000001, 0x80000001]
f32 = np.float32


def inputs(head_dim, pattern):
    state, out = 0x9E3779B97F4A7C15 + head_dim * 16 + pattern, []
    for i in range(TOKENS * head_dim):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        mantissa, sign, exponent = (state >> 41) & 0x7FFFFF, (state >> 40) & 1, 120 + (state >> 32) % 11
        if pattern == 1:
            sign, exponent, mantissa = 0, 130, mantissa >> 3
        bits = sign << 31 | exponent << 23 | mantissa
        if pattern == 2 and i % 7 == 3:
            bits = SPECIALS[(state >> 20) % len(SPECIALS)]
        if pattern == 2 and (i // head_dim) % 5 == 4:
            bits = 0
        out.append(bits)
    return np.array(out, np.uint32).view(np.float32).reshape(TOKENS, head_dim)


def clean(x):
    x = np.where(np.isnan(x), f32(0), x)
    return np.clip(x, f32(-65504), f32(65504)) + f32(0)


def half(x):
    return np.float16(f32(x))


def fma(a, b, c):
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = f32(float(exact))
    choices = [near, np.nextafter(near, f32(np.inf)), np.nextafter(near, f32(-np.inf))]
    return min(choices, key=lambda v: abs(Fraction(float(v)) - exact))


def int8_row(row):
    a = np.max(np.abs(row))
    if a < f32(2.0**-24):
        return np.zeros(len(row), np.int8), np.float16(0)
    h = half(a * (f32(1) / f32(127)))
    if f32(h) * f32(127) < a:
        h = np.nextafter(h, np.float16(np.inf))
    return np.clip(np.rint(row * (f32(1) / f32(h))), -127, 127).astype(np.int8), h


def e4m3_row(row):
    a = np.max(np.abs(row))
    if a < f32(2.0**-24):
        return np.zeros(len(row), np.uint8), np.float16(0)
    h = half(a * (f32(1) / f32(448)))
    if f32(h) * f32(448) < a:
        h = np.nextafter(h, np.float16(np.inf))
    scaled = np.clip(row * (f32(1) / f32(h)), f32(-448), f32(448))
    return scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), h


def fit(x):
    lo, rng = np.min(x), np.max(x) - np.min(x)
    if rng < f32(2.0**-20):
        return np.zeros(len(x), np.uint8), np.float16(0), half(lo)
    u = np.rint((x - lo) * (f32(960) / rng))
    best = None
    for offset, step in CANDIDATES:
        d = u - f32(offset)
        t = np.clip(np.rint(d * (f32(1) / f32(step))), 0, 15)
        cost = int(((d - t * step).astype(np.int64) ** 2).sum())
        if best is None or cost < best[0]:
            best = cost, offset, step
    unit = rng / f32(960)
    minimum, scale = half(fma(best[1], unit, lo)), half(f32(best[2]) * unit)
    q = np.clip(np.rint((x - f32(minimum)) * (f32(1) / f32(scale))), 0, 15)
    return q.astype(np.uint8), scale, minimum


def pack(q):
    return (q[0::2] | (q[1::2] << 4)).astype(np.uint8).tobytes()


def section(coding, x):
    head_dim = x.shape[1]
    if coding == "f32":
        return x.tobytes()
    if coding == "bf16":
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16).tobytes()
    x = clean(x)
    if coding in ("int8", "e4m3"):
        rows = [(int8_row if coding == "int8" else e4m3_row)(r) for r in x]
        return b"".join(q.tobytes() for q, _ in rows) + np.array([h for _, h in rows]).tobytes()
    if coding == "v4":
        groups = [[fit(r[g:g + GROUP]) for g in range(0, head_dim, GROUP)] for r in x]
        data = b"".join(pack(np.concatenate([g[0] for g in row])) for row in groups)
        return data + np.array([[g[1] for g in row] for row in groups]).tobytes() + \
            np.array([[g[2] for g in row] for row in groups]).tobytes()
    channels = [fit(x[:, c]) for c in range(head_dim)]
    q = np.stack([c[0] for c in channels], 1)
    data = b"".join(pack(r) for r in q) + np.array([c[1] for c in channels]).tobytes() + \
        np.array([c[2] for c in channels]).tobytes()
    return data + bytes(-len(data) % 16)


CODINGS = {("f32", "k"): "f32", ("bf16", "k"): "bf16", ("int8", "k"): "int8", ("int8", "v"): "int8",
           ("k8v4", "k"): "int8", ("k8v4", "v"): "v4", ("int4", "k"): "k4", ("int4", "v"): "v4",
           ("fp8_e4m3", "k"): "e4m3", ("fp8_e4m3", "v"): "e4m3"}
with np.errstate(all="ignore"), open("codec_golden.txt", "w") as out:
    for (fmt, side), coding in CODINGS.items():
        for head_dim in (6, 64, 80):
            for pattern in range(3):
                x = inputs(head_dim, pattern)
                out.write(f"{fmt} {side} {head_dim} {pattern} {section(coding, x).hex()}\n")
