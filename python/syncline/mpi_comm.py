"""Communicators of mpi4py."""

from __future__ import annotations

import sys
from typing import Any

# In the standard ABI of MPI 5, predefined handles are numbers of this page; elsewhere they are
# addresses.
_STANDARD_ABI_HANDLES = 4096


def native_communicator(comm: Any) -> tuple[str, int]:
    """The family of MPI libraries that made a communicator of mpi4py, and its MPI_Comm.

    Raises TypeError if `comm` is no communicator of mpi4py.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm, mpi.Comm):
        raise TypeError(f"comm must be a communicator of mpi4py, not {type(comm).__name__}")
    # MPICH's handles are ints, Open MPI's are pointers, and so are those of the standard ABI.
    if mpi._sizeof(mpi.Comm) == 4:
        return "MPICH", mpi._handleof(comm) & 0xFFFFFFFF
    is_standard = mpi._handleof(mpi.COMM_WORLD) < _STANDARD_ABI_HANDLES
    return "MPI 5 ABI" if is_standard else "Open MPI", mpi._handleof(comm)
