"""Read a GGUF file: metadata, and tensors as float32. Only what the demo model's source needs.

Read here rather than with the PyPI package: the format is a page of code, and every package less is one network
access less that can fail on the user's machine. Layout (version 3, little endian): magic, version, tensor count,
metadata count; metadata as (string key, type, value); tensor entries as (name, dimensions innermost first, type,
offset); then, aligned, the data.
"""

import struct

from checkpoint import np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8


class GgufError(Exception):
    pass


class Gguf:
    """metadata: key -> value (strings as str); entries: name -> (shape outermost first, type, offset)."""

    def __init__(self, path):
        self.path = path
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        if bytes(self.take(4)) != b"GGUF":
            raise GgufError("%s is not a GGUF file" % path)
        version = self.scalar("I")
        if version not in (2, 3):
            raise GgufError("%s: GGUF version %d is not supported" % (path, version))
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        self.metadata = {}
        for _ in range(pairs):
            key = self.string()
            self.metadata[key] = self.value(self.scalar("I"))
        self.entries = {}
        for _ in range(tensors):
            name = self.string()
            dimensions = [self.scalar("Q") for _ in range(self.scalar("I"))]
            kind = self.scalar("I")
            self.entries[name] = (tuple(reversed(dimensions)), kind, self.scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self.base = -(-self.at // alignment) * alignment

    def take(self, size):
        if self.at + size > len(self.data):
            raise GgufError("%s ends too early" % self.path)
        part = self.data[self.at:self.at + size]
        self.at += size
        return part

    def scalar(self, code):
        return struct.unpack("<" + code, bytes(self.take(struct.calcsize("<" + code))))[0]

    def string(self):
        return bytes(self.take(self.scalar("Q"))).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in SCALARS:
                dtype = np.dtype("<" + {"?": "u1"}.get(SCALARS[inner], SCALARS[inner]))
                return self.take(count * dtype.itemsize).view(dtype).tolist()
            return [self.value(inner) for _ in range(count)]
        return self.scalar(SCALARS[kind])

    def tensor(self, name):
        """The tensor as float32, as ggml dequantises it."""
        shape, kind, offset = self.entries[name]
        count = int(np.prod(shape, dtype=np.int64))
        begin = self.base + offset

        def raw(size, per_block):
            blocks = count // per_block
            return self.data[begin:begin + blocks * size].reshape(blocks, size)

        if kind == F32:
            values = self.data[begin:begin + 4 * count].view("<f4").astype(np.float32)
        elif kind == Q4_1:
            # 32 values: half scale d, half minimum m, 16 bytes: low nibbles are values 0..15, high ones 16..31.
            block = raw(20, 32)
            d = block[:, 0:2].copy().view("<f2").astype(np.float32)
            m = block[:, 2:4].copy().view("<f2").astype(np.float32)
            q = np.concatenate([block[:, 4:] & 15, block[:, 4:] >> 4], axis=1).astype(np.float32)
            values = q * d + m
        elif kind == Q8_0:
            block = raw(34, 32)
            values = block[:, 2:].view(np.int8).astype(np.float32) * block[:, 0:2].copy().view("<f2").astype(np.float32)
        else:
            raise GgufError("%s: tensor %s has type %d, which is not supported" % (self.path, name, kind))
        return values.reshape(shape)
