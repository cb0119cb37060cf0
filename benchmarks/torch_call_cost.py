"""What one all_reduce of one element costs through torch.distributed, and calls of ours in Python.

    ./bazelw run //benchmarks:torch_call_cost [-- --library PATH] [--sizes 1 2] [--rounds 15]

Beside torch's backend "fake", which does nothing: what is above it is the backend's own. All
systems take turns in one run, each in its own group of the same processes; the rows are medians
over rounds of the mean of a call. "torch's C++" is c10d::ProcessGroup::allreduce, in which calls
from Python end; a probe that Bazel builds calls it in a loop. "C++" is the core's function, called
by ctypes through the table of the extension: the cost of ctypes itself, measured on a function that
does nothing, is taken off. "The extension's" is the method as generated code has it, before the
package adds torch's forms.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_TIMEOUT = timedelta(seconds=60)
_CALLS = 2000


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("operation", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("factor", ctypes.c_double),
        ("peer", ctypes.c_int64),
        ("tag", ctypes.c_int64),
        ("timeout_ns", ctypes.c_int64),
        ("outputs", ctypes.POINTER(_Tensor)),
        ("output_count", ctypes.c_size_t),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("input_count", ctypes.c_size_t),
        ("splits", ctypes.c_void_p * 4),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int32),
        ("group", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)),
        ("drop_group", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
    )


_ALL_REDUCE, _FLOAT32 = 1, 11


def _core_call(group: Any, tensor: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The core's all_reduce through the C table; and a call by ctypes that does nothing."""
    from syncline import _syncline

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(_syncline._c_api(), b"syncline._syncline.c_api")
    table = ctypes.cast(address, ctypes.POINTER(_Table)).contents
    shape = (ctypes.c_int64 * 1)(tensor.numel())
    views = (_Tensor * 1)(_Tensor(tensor.data_ptr(), shape, 1, _FLOAT32))
    call = _Call(_ALL_REDUCE, 0, 1.0, -1, 0, -1, views, 1, None, 0)
    arguments = ctypes.c_void_p(table.group(group)), ctypes.c_void_p(ctypes.addressof(call))
    kept = (shape, views, call, tensor)
    run = table.run

    def of_core(_: Any = kept) -> None:
        assert run(*arguments) is None

    nothing = ctypes.CDLL(None).labs
    nothing.restype, nothing.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    zero = ctypes.c_void_p(0), arguments[1]

    def of_ctypes(_: Any = kept) -> None:
        assert nothing(*zero) is None

    return of_core, of_ctypes


def _mean(call: Callable[[], Any]) -> float:
    """Microseconds of one of many calls in a row."""
    for _ in range(_CALLS // 10):
        call()
    begin = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - begin) / _CALLS * 1e6


def _systems(library: str, rank: int, size: int) -> dict[str, Callable[[], float]]:
    """Functions that measure a call each, in microseconds; all ranks call them together."""
    import torch
    import torch.distributed as dist
    import torch_call_probe  # Beside this file, once Bazel has built it.
    from syncline.torch.backend import native
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    tensor = torch.ones(1)
    store = dist.FileStore(os.environ["BENCH_STORE"], size)
    measures: dict[str, Callable[[], float]] = {}

    def measure(name: str, call: Callable[[], Any]) -> None:
        measures[name] = lambda: _mean(call)

    def add(name: str, group: Any) -> None:
        opts = dist.AllreduceOptions()
        opts.asyncOp = False
        measure(f"dist.all_reduce, {name}", lambda: dist.all_reduce(tensor, group=group))
        measure(f"group.allreduce, {name}", lambda: group.allreduce([tensor], opts).wait())

        def of_probe() -> float:
            mean_of = torch_call_probe.mean_of_all_reduce
            mean_of(group, tensor, _CALLS // 10)
            return mean_of(group, tensor, _CALLS)

        measures[f"torch's C++, {name}"] = of_probe

    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    gloo = dist.group.WORLD
    fake_store: Any = FakeStore()
    fake = dist.distributed_c10d._new_process_group_helper(
        size, rank, list(range(size)), "fake", fake_store, "fake", timeout=_TIMEOUT
    )[0]
    dist.distributed_c10d._world.pg_group_ranks[fake] = {r: r for r in range(size)}
    add("fake", fake)
    add("gloo", gloo)
    for name, value in (("syncline in Python", "off"), ("syncline native", library)):
        os.environ["SYNCLINE_TORCH_NATIVE"] = value
        native.group_class.cache_clear()
        group: Any = dist.new_group(backend="syncline", timeout=_TIMEOUT)
        assert native.is_native() == (value != "off"), "the native backend has not been built"
        add(name, group)
    of_core, of_ctypes = _core_call(group.syncline_group, torch.ones(1))
    measure("C++ (ctypes)", of_core)
    measure("ctypes alone", of_ctypes)
    for name, call in _calls_of_ours(group.syncline_group, tensor).items():
        measure(name, call)
    return measures


def _calls_of_ours(group: Any, tensor: Any) -> dict[str, Callable[[], Any]]:
    import syncline
    from syncline.calls import waiting

    outputs, item, objects = [tensor.clone() for _ in range(group.size())], {"loss": 0.5}, [None]
    items: list[Any] = objects * group.size()
    return {
        "all_reduce: the extension's": lambda: waiting["all_reduce"](group, tensor),
        "group.all_reduce(tensor)": lambda: group.all_reduce(tensor),
        "syncline.all_reduce(tensor)": lambda: syncline.all_reduce(tensor, group=group),
        "group.allreduce([tensor]).wait()": lambda: group.allreduce([tensor]).wait(),
        "broadcast: the extension's": lambda: waiting["broadcast"](group, tensor, 0),
        "group.broadcast(tensor, 0)": lambda: group.broadcast(tensor, 0),
        "syncline.broadcast(tensor, 0)": lambda: syncline.broadcast(tensor, 0, group),
        "group.broadcast([tensor]).wait()": lambda: group.broadcast([tensor]).wait(),
        "all_gather: the extension's": lambda: waiting["all_gather"](group, outputs, tensor),
        "syncline.all_gather(outputs, tensor)": lambda: syncline.all_gather(outputs, tensor, group),
        "barrier: the extension's": lambda: waiting["barrier"](group),
        "group.barrier()": lambda: group.barrier(),
        "all_gather_bytes": lambda: group.all_gather_bytes(b"loss"),
        "broadcast_bytes": lambda: group.broadcast_bytes(b"loss", 0),
        "syncline.all_gather_object": lambda: syncline.all_gather_object(items, item, group),
        "syncline.broadcast_object_list": lambda: syncline.broadcast_object_list(objects, 0, group),
    }


def _rank_main(library: str, rank: int, size: int, rounds: int) -> None:
    import torch.distributed as dist

    measures = _systems(library, rank, size)
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            dist.barrier()
            found[name].append(measure())
    if rank == 0:
        _print(size, {name: statistics.median(values) for name, values in found.items()})
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's gloo may abort in its destructors.


def _print(size: int, medians: dict[str, float]) -> None:
    core = medians["C++ (ctypes)"] - medians["ctypes alone"]
    print(f"\n{size} rank{'s' if size > 1 else ''}; C++: {core:.2f} us\n")
    print("| call | us | above fake | above C++ |")
    print("|---|---|---|---|")
    for name, value in medians.items():
        fake = medians.get(name.partition(", ")[0] + ", fake")
        above_fake = "" if fake is None else f"{value - fake:.2f}"
        print(f"| {name} | {value:.2f} | {above_fake} | {value - core:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=os.environ.get("SYNCLINE_TORCH_NATIVE", "on"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if "BENCH_RANK" in os.environ:
        rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        _rank_main(given.library, rank, size, given.rounds)
        return
    library = given.library if given.library == "on" else os.path.abspath(given.library)
    for size in given.sizes:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--library", library]
            command += ["--rounds", str(given.rounds)]
            common = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "BENCH_STORE": os.path.join(folder, "store"),
                "BENCH_SIZE": str(size),
            }
            ranks = [
                subprocess.Popen(command, env={**common, "BENCH_RANK": str(rank)})
                for rank in range(size)
            ]
            try:
                codes = [rank.wait(600) for rank in ranks]
            finally:
                for each in ranks:
                    each.kill()
        if any(codes):
            sys.exit(f"ranks have ended with {codes}")


if __name__ == "__main__":
    main()
