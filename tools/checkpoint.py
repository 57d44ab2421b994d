"""What the model makers share: numbers, number formats and files. Only numpy and the standard library.

Numbers.  Random tensors come from a counter-based hash (splitmix64 of a seed and the element's index) and integer
sums, never from numpy's own generators, so the same seed gives the same bytes with every numpy and on every
machine. The seed of a tensor is a hash of the model's seed and the tensor's name: tensors do not depend on the
order in which they are made.

Formats.  bf16 and float16 round to nearest even; E4M3 is the "fn" kind (no infinity, +-448, NaN 0x7f). Tensors
travel as a Tensor: its dtype name as safetensors spells it, and an array of the raw elements.

Files.  safetensors is an 8-byte length, a JSON header and the bytes; it is written here by hand, one tensor at a
time, so a large model never exists twice in memory. A model directory is written beside its place and renamed into
it, so that a reader, or a killed run, never sees half of one.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from typing import NamedTuple, Callable

try:
    import numpy as np
except ImportError:
    sys.exit("numpy is missing for %s: install the package python3-numpy (apt-get install python3-numpy), "
             "or name another interpreter: make PYTHON=..." % sys.executable)


# Numbers

GOLDEN = 0x9E3779B97F4A7C15


def tensor_seed(seed, name):
    """64 bits from the model's seed and a name."""
    return int.from_bytes(hashlib.sha256(("%d:%s" % (seed, name)).encode()).digest()[:8], "little")


def hash_u64(seed, count, start=0):
    """Elements start..start+count-1 of the splitmix64 stream of `seed`, as uint64."""
    with np.errstate(over="ignore"):
        z = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(seed, shape):
    """float64 in [0, 1), 53 bits."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((hash_u64(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0 ** -53).reshape(shape)


def gaussian(seed, shape):
    """float64, mean 0, deviation 1: the sum of twelve 16-bit uniforms, centred. The sum is an integer and the scale a
    power of two, so the result is exact; its variance falls short of 1 by 2^-32. Range +-6."""
    count = int(np.prod(shape, dtype=np.int64))
    total = np.zeros(count, dtype=np.int64)
    for part in range(3):
        bits = hash_u64(seed, count, part * count)
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return ((2 * total - 12 * 65535).astype(np.float64) * 2.0 ** -17).reshape(shape)


# Formats

class Tensor(NamedTuple):
    dtype: str          # "F32", "BF16", "F16", "F8_E4M3", "I64"
    raw: np.ndarray     # float32, uint16, float16, uint8 or int64: the stored elements


STORED = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F8_E4M3": np.dtype("u1"),
          "I64": np.dtype("<i8")}


def bf16_encode(x):
    """float32 array -> bf16 bits as uint16, nearest even. No NaN expected."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16_decode(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def e4m3_table():
    """The 256 values of float8_e4m3fn as float32."""
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent = (code >> 3) & 15
    mantissa = (code & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa * 2.0 ** -9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value[(code & 0x7F) == 0x7F] = np.nan
    return (sign * value).astype(np.float32)


E4M3 = e4m3_table()


def e4m3_encode(x):
    """float32 array within +-448 -> nearest E4M3 code, ties to the even code."""
    values = E4M3[:0x7F].astype(np.float64)  # 0 .. 448, ascending
    middle = (values[1:] + values[:-1]) / 2
    magnitude = np.abs(np.asarray(x, dtype=np.float64))
    below = np.searchsorted(middle, magnitude, side="left")   # a tie goes down
    above = np.searchsorted(middle, magnitude, side="right")  # a tie goes up
    code = np.where(below % 2 == 0, below, above).astype(np.uint8)
    return code | np.where(np.signbit(x), np.uint8(0x80), np.uint8(0))


def encode(x, dtype):
    """float array -> Tensor of a plain floating dtype."""
    x = np.asarray(x, dtype=np.float32)
    if dtype == "F32":
        return Tensor("F32", x)
    if dtype == "BF16":
        return Tensor("BF16", bf16_encode(x))
    if dtype == "F16":
        return Tensor("F16", x.astype(np.float16))
    raise ValueError("no plain dtype " + dtype)


def decode(tensor):
    """Tensor -> float32 array (an E4M3 tensor without its scales)."""
    if tensor.dtype == "BF16":
        return bf16_decode(tensor.raw)
    if tensor.dtype == "F8_E4M3":
        return E4M3[tensor.raw]
    return tensor.raw.astype(np.float32)


def fp8_quantise(x, power_of_two=False):
    """[rows, columns] -> (E4M3 Tensor, F32 scale Tensor [ceil(rows/128), ceil(columns/128)]); the scale multiplies."""
    x = np.asarray(x, dtype=np.float32)
    rows, columns = x.shape
    grid = (-(-rows // 128), -(-columns // 128))
    scale = np.empty(grid, dtype=np.float32)
    code = np.empty(x.shape, dtype=np.uint8)
    for i in range(grid[0]):
        for j in range(grid[1]):
            block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            top = float(np.abs(x[block]).max())
            step = np.float32(top / 448) if top > 0 else np.float32(1)
            if power_of_two:
                mantissa, exponent = np.frexp(step)
                step = np.float32(np.ldexp(1.0, int(exponent) - (1 if mantissa == 0.5 else 0)))
            scale[i, j] = step
            code[block] = e4m3_encode(np.clip(x[block].astype(np.float64) / step, -448, 448))
    return Tensor("F8_E4M3", code), Tensor("F32", scale)


def fp8_dequantise(code, scale):
    """What the weights mean: q * scale, in float32."""
    q = E4M3[code.raw]
    wide = np.repeat(np.repeat(scale.raw, 128, axis=0), 128, axis=1)[:q.shape[0], :q.shape[1]]
    return q * wide


# Files

class Lazy(NamedTuple):
    """A tensor that is made when it is written: shape and dtype now, the elements later."""
    dtype: str
    shape: tuple
    make: Callable[[], Tensor]


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> Tensor or Lazy, written in the given order. Returns the bytes of tensor data."""
    header = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    offset = 0
    for name, tensor in tensors.items():
        shape = tensor.shape if isinstance(tensor, Lazy) else tensor.raw.shape
        size = int(np.prod(shape, dtype=np.int64)) * STORED[tensor.dtype].itemsize
        header[name] = {"dtype": tensor.dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name, tensor in tensors.items():
            if isinstance(tensor, Lazy):
                made = tensor.make()
                if made.dtype != tensor.dtype or made.raw.shape != tuple(tensor.shape):
                    raise ValueError("%s: made %s %s, announced %s %s" % (name, made.dtype, made.raw.shape,
                                                                         tensor.dtype, tensor.shape))
                tensor = made
            out.write(np.ascontiguousarray(tensor.raw, dtype=STORED[tensor.dtype]).tobytes())
    return offset


def read_safetensors(path):
    """name -> Tensor, for files of our own making."""
    with open(path, "rb") as source:
        size = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(size))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], data[begin:end].view(STORED[entry["dtype"]]).reshape(entry["shape"]))
    return tensors


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=False, indent=2)
        out.write("\n")


def directory_digest(place):
    """SHA-256 over the names and bytes of a directory's files."""
    total = hashlib.sha256()
    for name in sorted(os.listdir(place)):
        with open(os.path.join(place, name), "rb") as source:
            total.update(("%s %s\n" % (name, hashlib.sha256(source.read()).hexdigest())).encode())
    return total.hexdigest()


class OutputDirectory:
    """with OutputDirectory(place) as work: write into `work`; at the end it becomes `place`, replacing an old one."""

    def __init__(self, place):
        self.place = os.path.normpath(place)
        self.work = "%s.making.%d" % (self.place, os.getpid())

    def __enter__(self):
        os.makedirs(self.work)
        return self.work

    def __exit__(self, kind, value, trace):
        if kind is None:
            if os.path.isdir(self.place):
                old = self.work + ".old"
                os.rename(self.place, old)
                os.rename(self.work, self.place)
                shutil.rmtree(old)
            else:
                os.rename(self.work, self.place)
        else:
            shutil.rmtree(self.work, ignore_errors=True)


START = time.monotonic()


def stage(text):
    """One progress line."""
    print("[%6.1fs] %s" % (time.monotonic() - START, text), flush=True)
