"""What Syncline raises.

Bad arguments raise ValueError or TypeError, what a backend does not serve NotImplementedError,
all before anything happens. Everything else is a DistError. Where versions of torch.distributed
raise different types, an error is of all of them. Messages say what was attempted, which
ranks or hosts are concerned as far as is known, how long it took, and what to do. The ranks and the
operation are attributes of a DistError too, so that no program need read its message.
"""

from __future__ import annotations


class DistError(RuntimeError):
    """An operation between processes failed.

    Attributes:
      ranks: the ranks at fault: those that came late, died, left, or disagree; ascending, in the
        numbers of the group that the message names. Empty if they are not known.
      operation: the operation that failed, as messages name it: "all_reduce". For a mismatch this
        rank's, where it is among those that disagree. A call that is refused because its group is
        broken has that which broke it. None where no operation of a group failed, and for one
        that had not begun.
      sequence: the number of that operation in its group, which for send and recv is counted
        between the two ranks. None where `operation` is.
    """

    ranks: tuple[int, ...] = ()
    operation: str | None = None
    sequence: int | None = None


class DistTimeoutError(DistError, TimeoutError):
    """Something has not happened in time: a rank has not joined, a key has not been set."""


class DistNetworkError(DistError, ConnectionError):
    """A connection could not be made or was lost."""


class DistStoreError(DistError):
    """A store could not do its work."""


class DistStoreTimeoutError(DistStoreError, DistTimeoutError):
    """A key has not been set in time. Torch raises a DistStoreError, Python a TimeoutError."""


class QueueEmptyError(DistStoreError):
    """A queue of a store has no value, and the caller does not wait."""


class DistBackendError(DistError):
    """A backend failed, or its group is broken or closed."""


class DistMismatchError(DistError):
    """Ranks called different operations, or one with arguments that do not fit together."""


class DistUsageError(DistError, ValueError):
    """A call out of its time: before init_process_group, or init_process_group twice."""


class ObjectRefusedError(DistError):
    """Another rank could not send or read the objects of a call; it has an error that says more."""


class DistValueError(ValueError, RuntimeError):
    """An argument has a wrong value. Torch raises ValueError, and in its version 1 RuntimeError."""


class DistTypeError(TypeError, RuntimeError):
    """An argument has a wrong type. Torch raises TypeError, and in its version 1 RuntimeError."""


def with_words(error: BaseException, words: str) -> None:
    """Has the message of `error` begin with the words of torch that scripts look for."""
    if error.args and not str(error.args[0]).startswith(words):
        error.args = (f"{words}: {error.args[0]}", *error.args[1:])
