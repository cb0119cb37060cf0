"""DLPack's structs, of which libraries in tests are made: https://dmlc.github.io/dlpack/latest."""

import ctypes
from typing import Any

CPU, CUDA, VULKAN = 1, 2, 7
READ_ONLY, COPIED = 1, 2  # Flags of Managed.
INT, UINT, FLOAT, COMPLEX, BOOL = 0, 1, 2, 5, 6
CODES = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}  # By NumPy's kinds.

Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Unversioned(ctypes.Structure):
    """A managed tensor of before version 1."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Managed(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class Table(ctypes.Structure):
    """The C exchange API of an array type, from version 1.3 on."""

    _fields_ = [
        ("version", Version),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", Export),
        ("to_python", ctypes.c_void_p),
        ("lend", ctypes.c_void_p),
        ("stream", CurrentStream),
    ]


def capsule(struct: ctypes.Structure, name: bytes = b"dlpack_exchange_api") -> Any:
    """A PyCapsule of the struct, which it does not keep."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(struct), name, None)
