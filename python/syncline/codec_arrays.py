"""NumPy's scalars and arrays, and PyTorch's tensors, in the safe codec.

Neither library is imported for it unless a message holds one of its objects.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

# NumPy's names of element types that are no more than data: "<f4", "|b1", "<U5", "<M8[ns]", "|V2".
_SIMPLE = re.compile(r"[<>|=][biufcSUVmM]\d{1,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")
_TORCH_DTYPE = re.compile(r"[a-z]+\d*[a-z0-9_]*")


class ArrayCodec:
    """Turns arrays into JSON and a buffer, and back.

    `buffer` puts away bytes and returns their size (encoding), or takes a size and returns the next
    bytes (decoding).
    """

    def __init__(self, buffer: Callable[[Any], Any]):
        self._buffer = buffer

    def encode(self, value: Any) -> dict[str, Any] | None:
        """None if `value` is of another type. TypeError for elements that are no data."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            tag = "array" if type(value) is numpy.ndarray else "scalar"
            dtype = _dtype_name(value.dtype)
            return {tag: [dtype, list(value.shape), self._buffer(value.tobytes())]}
        if torch is not None and type(value) is torch.Size:
            return {"size": list(value)}
        if torch is not None and type(value) is torch.Tensor:
            return {"tensor": self._encode_tensor(value, torch)}
        return None

    def decode(self, tag: str, content: Any) -> Any:
        """The array, a copy that is writable. ValueError and the like if anything does not fit."""
        if tag not in ("array", "scalar", "tensor", "size"):
            raise ValueError(f"unknown tag {tag!r}")
        if tag == "size":
            return _decode_size(content)
        dtype_name, shape, size, *more = content
        if more and (tag != "tensor" or more != [True]):
            raise ValueError(f"{more!r} is left over")
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{shape} is no shape")
        data = self._buffer(size)
        if tag == "tensor":
            return _decode_tensor(dtype_name, shape, data).requires_grad_(bool(more))
        import numpy

        dtype = _dtype(dtype_name)
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes are no {dtype}{shape}")
        array: Any = numpy.ndarray(shape, dtype, bytearray(data))
        return array if tag == "array" else array[()]

    def _encode_tensor(self, tensor: Any, torch: Any) -> list[Any]:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise TypeError(
                "a sparse, quantized or meta tensor cannot be carried by the safe codec: make it "
                'dense, or pass codec="pickle"'
            )
        flat = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        dtype = str(tensor.dtype).removeprefix("torch.")
        encoded = [dtype, list(tensor.shape), self._buffer(data)]
        return [*encoded, True] if tensor.requires_grad else encoded


def _dtype_name(dtype: Any) -> Any:
    """A name, a list of fields, or a type with a shape, as _dtype reads them."""
    if dtype.hasobject:
        raise TypeError(
            "an array with elements of type object cannot be carried by the safe codec: "
            'convert it, or pass codec="pickle"'
        )
    if type(dtype).__module__ == "ml_dtypes" or dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _dtype_name(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_dtype_name(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) == 3 else None for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _dtype(name: Any) -> Any:
    import numpy

    if isinstance(name, dict) and "base" in name:
        return numpy.dtype((_dtype(name["base"]), tuple(name["shape"])))
    if isinstance(name, dict):
        formats = [_dtype(field) for field in name["formats"]]
        layout: Any = {key: name[key] for key in ("names", "offsets", "titles", "itemsize")}
        layout["formats"] = formats
        return numpy.dtype(layout, align=bool(name["aligned"]))
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no element type")
    if name.startswith("ml_dtypes."):
        try:
            import ml_dtypes
        except ImportError as error:
            raise ValueError(f"elements are {name}, which is not installed here") from error
        scalar = getattr(ml_dtypes, name.removeprefix("ml_dtypes."), None)
        if isinstance(scalar, type) and issubclass(scalar, numpy.generic):
            return numpy.dtype(scalar)
    elif _SIMPLE.fullmatch(name):
        return numpy.dtype(name)
    raise ValueError(f"unknown element type {name!r}")


def _decode_size(lengths: Any) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ValueError("a torch.Size was sent, and PyTorch is not installed here") from error

    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise ValueError(f"{lengths!r} is no torch.Size")
    return torch.Size(lengths)


def _decode_tensor(dtype_name: str, shape: list[int], data: bytes) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ValueError("a tensor of PyTorch was sent, which is not installed here") from error

    dtype = getattr(torch, dtype_name, None) if _TORCH_DTYPE.fullmatch(dtype_name) else None
    if not isinstance(dtype, torch.dtype) or dtype_name.startswith("q"):  # Quantized.
        raise ValueError(f"unknown element type {dtype_name!r}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no {dtype}{shape}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)
