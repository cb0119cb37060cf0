"""The limit of open files: each array in flight, or mapped, takes one."""

from __future__ import annotations

import errno
import os
import resource

_raised = False


def raise_descriptor_limit() -> None:
    """Sets this process's soft limit of open files to the hard one, once."""
    global _raised
    if _raised:
        return
    _raised = True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # The error that names the limit comes when it is reached.


def check_room(descriptor: int, count: int) -> None:
    """Raises the error for EMFILE unless this process can get `count` more descriptors.

    Tries it with copies of an open one.
    """
    raise_descriptor_limit()
    probes: list[int] = []
    try:
        while len(probes) < count:
            probes.append(os.dup(descriptor))
    except OSError as error:
        happened = f"a message with {count} descriptors can be received when some are closed"
        raise too_many_descriptors(error.errno, happened) from None
    finally:
        for probe in probes:
            os.close(probe)


def too_many_descriptors(number: int, happened: str) -> OSError:
    """The error for EMFILE, ENFILE or ETOOMANYREFS, with what to do about it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    why = (
        "too many descriptors in flight" if number == errno.ETOOMANYREFS else "too many open files"
    )
    return OSError(
        number,
        f"{happened}: {why}, the limit is {soft} (hard limit {hard}). Each shared array takes one"
        " until it is freed: receive arrays sooner, bound the queue by maxsize, send many arrays in"
        " one message, or raise the limit (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of"
        " Docker)",
    )
