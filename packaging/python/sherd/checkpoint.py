"""Reads checkpoints of format version 1 (checkpoint/FORMAT.md) into NumPy arrays."""

import dataclasses
import math
import pathlib
import re
import struct

import numpy
import xxhash

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
           "U8": "u1", "F8_E4M3": "u1", "BOOL": "?"}
_BLOCK = 1 << 20  # bytes of a file's data under one checksum


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint: its folder, training state, and tensors by name.

    model has parameters and buffers, optim entries "optim.state.NAME.KEY". BF16 becomes float32, which has the same values.
    """

    folder: pathlib.Path
    step: int
    sequences: int
    seed: int
    info: dict
    model: dict
    optim: dict


def load_checkpoint(path, optim=True, verify=True):
    """Returns the Checkpoint in a folder, or the newest one of a save folder, with whole tensors.

    optim: whether optimizer state is read. verify: whether every checksum is compared; a difference throws ValueError with
    the file and the range of its bytes.
    """
    folder = pathlib.Path(path)
    if not (folder / "manifest.binpb").is_file():
        saved = [p for p in folder.glob("step_*") if re.fullmatch(r"step_\d{8,}", p.name) and (p / "manifest.binpb").is_file()]
        folder = max(saved, key=_sequence, default=folder)
    manifest = _message(_manifest(folder))
    training = _message(manifest.get(1, [b""])[0])
    files = [_message(file) for file in manifest.get(2, [])]
    tensors = [_message(tensor) for tensor in manifest.get(3, [])]
    if not optim:
        tensors = [tensor for tensor in tensors if _number(tensor, 2) == 0]
    pieces = [[_message(piece) for piece in tensor.get(5, [])] for tensor in tensors]
    opened = {index: _open(folder, files[index], verify)
              for index in sorted({_number(piece, 3) for of_tensor in pieces for piece in of_tensor})}
    sections = ({}, {})
    for tensor, of_tensor in zip(tensors, pieces):
        sections[_number(tensor, 2)][_text(tensor, 1)] = _tensor(tensor, of_tensor, opened)
    entries = [_message(entry) for entry in training.get(4, [])]
    return Checkpoint(folder, _number(training, 1), _number(training, 2), _number(training, 3),
                      {_text(entry, 1): _text(entry, 2) for entry in entries}, *sections)


def _sequence(folder):
    """Sequence number of a checkpoint, by which the newest one is known: a crash can leave `latest` behind."""
    with open(folder / "manifest.binpb", "rb") as file:
        prefix = file.read(24)
    return struct.unpack_from("<Q", prefix, 16)[0] if len(prefix) == 24 else -1


def _manifest(folder):
    """The message of manifest.binpb, after its prefix and checksums are checked."""
    file = folder / "manifest.binpb"
    if not file.is_file():
        raise FileNotFoundError(f"'{folder}' is not a checkpoint or a save folder: it has neither manifest.binpb nor a checkpoint step_NNNNNNNN; "
                                "give the folder that --save named, or step_NNNNNNNN below it")
    data = file.read_bytes()
    if len(data) < 48 or data[:8] != b"sherdckp":
        raise ValueError(f"'{file}' is not a manifest: its first bytes are {data[:8]!r}; give a checkpoint that sherd saved")
    version, _, _, length, message, prefix = struct.unpack("<IIQQQQ", data[8:48])
    if version != 1:
        raise ValueError(f"'{file}' has format version {version}; this package reads version 1: install a newer one")
    if len(data) != 48 + length or _digest(data[:40]) != prefix or _digest(data[48:]) != message:
        raise ValueError(f"'{file}' is damaged: its length or a checksum differs; use another checkpoint of the run")
    return data[48:]


def _open(folder, file, verify):
    name, size, header = _text(file, 1), _number(file, 2), _number(file, 3)
    path = folder / name
    if not path.is_file() or path.stat().st_size != size:
        raise ValueError(f"'{path}' is missing or has not the recorded length of {size} bytes; use another checkpoint")
    data = numpy.memmap(path, numpy.uint8, "r")
    if verify:
        checksums = struct.unpack(f"<{len(file[5][0]) // 8}Q", file[5][0]) if 5 in file else ()
        ranges = [(0, header)] + [(begin, min(begin + _BLOCK, size)) for begin in range(header, size, _BLOCK)]
        for (begin, end), expected in zip(ranges, (_number(file, 4), *checksums), strict=True):
            if _digest(data[begin:end]) != expected:
                raise ValueError(f"'{path}' is damaged: the checksum of bytes [{begin}, {end}) differs; use another checkpoint")
    return data


def _tensor(tensor, pieces, opened):
    """Assembles a tensor of its pieces, each a box of the whole."""
    name = _text(tensor, 3)
    shape = _numbers(tensor, 4)
    whole = numpy.empty(shape, _DTYPES[name])
    for piece in pieces:
        offset, size, begin = _numbers(piece, 1), _numbers(piece, 2), _number(piece, 4)
        data = opened[_number(piece, 3)][begin:begin + math.prod(size) * whole.itemsize]
        whole[tuple(slice(at, at + count) for at, count in zip(offset, size))] = data.view(whole.dtype).reshape(size)
    if name == "BF16":
        whole = (whole.astype("<u4") << 16).view("<f4")
    return whole.reshape(()) if _number(tensor, 7) else whole


def _digest(data):
    return xxhash.xxh3_64_intdigest(data)


# Protocol Buffers: a message is a dict from a field's number to its values, numbers or bytes.
def _message(data):
    fields, at = {}, 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(data, at)
            value, at = data[at:at + size], at + size
            if kind != 2:
                value = int.from_bytes(value, "little")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at


def _numbers(message, field):
    """A repeated field of varints, packed as the writer has it."""
    values = []
    for packed in message.get(field, []):
        at = 0
        while at < len(packed):
            value, at = _varint(packed, at)
            values.append(value)
    return values


def _number(message, field):
    return message.get(field, [0])[-1]


def _text(message, field):
    return message.get(field, [b""])[-1].decode()
