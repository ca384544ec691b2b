#!/usr/bin/env python3
"""Exchanges tensors with PyTorch in memory, both ways, by DLPack 1.0.

    python dlpack_interop.py dlpack_bridge.so

Every dtype goes to torch and comes from it without a copy, written on either side and seen on the other; memory is let
go when the last user is gone; what cannot be taken is refused. Exit code 77 (skipped) where torch gives no versioned
capsules.
"""

import ctypes
import gc
import sys

import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
          "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}
VERSIONED, USED = b"dltensor_versioned", b"used_dltensor_versioned"

api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Lent:
    """What torch.from_dlpack asks for its capsule."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return api.PyCapsule_New(self.pointer, VERSIONED, None)


def require(ok, what):
    if not ok:
        raise AssertionError(what)


def main():
    bridge = ctypes.CDLL(sys.argv[1])
    pointer, number, text, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_double
    bridge.bridge_open.restype = pointer
    bridge.bridge_close.argtypes = [pointer]
    bridge.bridge_error.restype, bridge.bridge_error.argtypes = text, [pointer]
    bridge.bridge_live_bytes.restype, bridge.bridge_live_bytes.argtypes = number, [pointer]
    bridge.bridge_lend.restype = pointer
    bridge.bridge_lend.argtypes = [pointer, text, number, number, real]
    bridge.bridge_fill.argtypes = [pointer, pointer, text, real]
    mine = bridge.bridge_open()

    try:
        capsule = torch.zeros(1).__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = None
    if capsule is None or not api.PyCapsule_IsValid(capsule, VERSIONED):
        print(f"skipped: torch {torch.__version__} gives no versioned DLPack capsules")
        return 77

    for name, dtype in DTYPES.items():
        require(bridge.bridge_live_bytes(mine) == 0, "nothing is lent")
        t = torch.from_dlpack(Lent(bridge.bridge_lend(mine, name.encode(), 3, 5, 7)))
        require(t.dtype == dtype and tuple(t.shape) == (3, 5), f"{name}: {t.dtype}, {tuple(t.shape)}")
        require(bool((t == 7).all()), f"{name}: other values")
        t[1, 2] = 9
        require(float(t[1:].sum()) == 9 * 7 + 9, f"{name}: not writable")
        view = t[2]
        del t
        gc.collect()
        require(bridge.bridge_live_bytes(mine) > 0 and bool((view == 7).all()), f"{name}: gone too early")
        del view
        gc.collect()
        require(bridge.bridge_live_bytes(mine) == 0, f"{name}: not let go")

    def borrow(t, name):
        capsule = t.__dlpack__(max_version=(1, 0))
        refused = bridge.bridge_fill(mine, api.PyCapsule_GetPointer(capsule, VERSIONED), name.encode(), 4)
        if refused:
            return bridge.bridge_error(mine).decode()
        api.PyCapsule_SetName(capsule, USED)  # its owner has let it go
        return None

    for name, dtype in DTYPES.items():
        t = torch.zeros(4, 6, dtype=dtype)
        require(borrow(t[1:3], name) is None, bridge.bridge_error(mine))
        require(bool((t[1:3] == 4).all()) and bool((t[0] == 0).all()) and bool((t[3] == 0).all()), f"{name}: values")
    require("contiguous" in borrow(torch.zeros(4, 6).t(), "f32"), "a transposed tensor was taken")
    require("uint8" in borrow(torch.zeros(4, dtype=torch.bool), "u8"), "a tensor of bool was taken")
    require("type code 5" in borrow(torch.zeros(4, dtype=torch.complex64), "f32"), "a complex tensor was taken")
    bridge.bridge_close(mine)
    print(f"torch {torch.__version__}: {len(DTYPES)} dtypes lent and borrowed in place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
