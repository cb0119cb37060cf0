"""The wheels for other interpreters, each in a clean environment of that interpreter.

Those come from newer Debians, with their own C library (third_party/python.BUILD).
"""

import os
import pathlib

import clean_venv
import pytest

VERSIONS = ["3.13", "3.14"]

WORKER = """
import array
import sys
import syncline as dist

dist.init_process_group()
rank = dist.get_rank()
floats = array.array("f", [rank + 1.0] * 1001)
dist.all_reduce(floats)
work = dist.all_reduce(floats, dist.ReduceOp.MAX, async_op=True)
work.wait()
assert list(floats) == [3.0] * 1001
everyone = [None, None]
dist.all_gather_object(everyone, {"rank": rank, "version": sys.version_info[:2]})
assert [each["rank"] for each in everyone] == [0, 1], everyone
peer = bytearray(8)
if rank == 0:
    dist.send(bytearray(b"12345678"), dst=1)
else:
    dist.recv(peer, src=0)
    assert peer == b"12345678"
store = dist.PrefixStore("mine", dist.HashStore())
store.set("key", "value")
assert store.get("key") == b"value"
try:
    dist.all_reduce(array.array("f", [1.0] * (2 + rank)))
except dist.DistMismatchError as error:
    assert "rank" in str(error)
else:
    raise AssertionError("ranks called all_reduce with other sizes")
print("done", *sys.version_info[:2])
"""

WRONG_CALLS = """
import array
import syncline as dist

store = dist.HashStore()
world = dist.World.init(store=store, rank=0, world_size=1)
values = array.array("d", [1.5, -2.0])
world.group.all_reduce(values)
assert list(values) == [1.5, -2.0]
try:
    world.group.all_reduce("no tensor")
except TypeError as error:
    print(error)
try:
    world.group.all_reduce(values, unknown=1)
except TypeError as error:
    print(error)
try:
    dist.ReduceOp(17)
except Exception as error:
    print(type(error).__name__)
"""

PROCESSES = """
import syncline.multiprocessing as mp


def child(queue, data):
    queue.put(bytes(data[:3]))


if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        context = mp.get_context(method)
        queue = context.Queue()
        data = bytearray(b"abcdef")
        process = context.Process(target=child, args=(queue, data))
        process.start()
        assert queue.get(timeout=60) == b"abc"
        process.join(60)
        assert process.exitcode == 0
    print("done")
"""


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def venv(version, tmp_path_factory):
    root = os.path.abspath(f"../python{version}")
    name = "wheel_cp" + version.replace(".", "")
    (wheel,) = pathlib.Path("python", name).absolute().glob("*.whl")
    return clean_venv.CleanVenv(
        tmp_path_factory.mktemp("clean"),
        interpreter=f"{root}/usr/bin/python{version}",
        wheel=wheel,
        pip=f"{root}/pip.whl/pip",
    )


def test_two_workers_of_its_launcher_communicate(version, venv):
    (venv.folder / "worker.py").write_text(WORKER)
    launch = [venv.root / "bin/syncline-run", "--standalone", "--nproc-per-node", "2"]
    out = venv.run(*launch, "worker.py")
    assert out.count(f"done {version.replace('.', ' ')}\n") == 2, out


def test_wrong_arguments_raise(venv):
    first, second, third = venv.run(venv.python, "-W", "error", "-c", WRONG_CALLS).splitlines()
    assert "not str" in first
    assert "unknown" in second
    assert third == "ValueError"


def test_processes_start_by_every_method(venv):
    (venv.folder / "processes.py").write_text(PROCESSES)
    assert venv.run(venv.python, "processes.py") == "done\n"


def test_every_module_of_the_package_is_imported_without_a_warning(venv):
    script = """
import importlib, pkgutil, syncline
for module in pkgutil.walk_packages(syncline.__path__, "syncline."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name in ("cupy", "jax", "mpi4py", "numpy", "torch"), (module, error)
print("all")
"""
    assert venv.run(venv.python, "-W", "error", "-c", script) == "all\n"
