"""What the backend raises: Syncline's errors that are also those of torch.distributed.

So `except torch.distributed.DistBackendError` and `except syncline.DistError` both catch them.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

from syncline import errors

_backend: Any = getattr(torch.distributed, "DistBackendError", RuntimeError)
_network: Any = getattr(torch.distributed, "DistNetworkError", RuntimeError)
_store: Any = getattr(torch.distributed, "DistStoreError", RuntimeError)


class DistTimeoutError(errors.DistTimeoutError, _backend):  # type: ignore[misc]
    """Ranks have not come in time; it names them."""


class DistNetworkError(errors.DistNetworkError, _network, _backend):  # type: ignore[misc]
    """A connection could not be made or was lost: the rank at its other end may have died."""


class DistStoreError(errors.DistStoreError, _store):  # type: ignore[misc]
    """A store could not do its work."""


class DistBackendError(errors.DistBackendError, _backend):  # type: ignore[misc]
    """An operation failed, or its group is broken or closed; it names the rank that is to blame."""


class DistMismatchError(errors.DistMismatchError, _backend):  # type: ignore[misc]
    """Ranks called different operations, or one with arguments that do not fit together."""


_KINDS: dict[type[BaseException], type[Exception]] = {
    errors.DistTimeoutError: DistTimeoutError,
    errors.DistNetworkError: DistNetworkError,
    errors.DistStoreError: DistStoreError,
    errors.DistBackendError: DistBackendError,
    errors.DistMismatchError: DistMismatchError,
}


def translated(error: errors.DistError) -> Exception:
    """`error` as one that torch's types match too."""
    kind = _KINDS.get(type(error))
    if kind is None:
        return error
    translation = kind(*error.args)
    translation.__dict__.update(error.__dict__)  # The ranks and the operation.
    return translation


def translated_any(error: Exception) -> Exception:
    """As translated; any other exception as it is. For C++."""
    return translated(error) if isinstance(error, errors.DistError) else error
