"""What Syncline raises.

Bad arguments raise ValueError or TypeError, what a backend does not serve NotImplementedError,
all before anything happens. Everything else is a DistError. Messages say what was attempted, which
ranks or hosts are concerned as far as is known, how long it took, and what to do.
"""


class DistError(RuntimeError):
    """An operation between processes failed."""


class DistTimeoutError(DistError, TimeoutError):
    """Something has not happened in time: a rank has not joined, a key has not been set."""


class DistNetworkError(DistError, ConnectionError):
    """A connection could not be made or was lost."""


class DistStoreError(DistError):
    """A store could not do its work."""


class DistBackendError(DistError):
    """A backend failed, or its group is broken or closed."""


class DistMismatchError(DistError):
    """Ranks called different operations, or one with arguments that do not fit together."""
