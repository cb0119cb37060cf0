"""The native backend itself: which library is taken, how it is built, what torch sees of it."""

import os
import pathlib
import stat
import subprocess
import sys
import threading

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline.info
import syncline.torch
import torch
import torch_ranks
from syncline import _syncline, torch_native
from syncline.torch.backend import native
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile

VERSION = _syncline.Info.version()

# A compiler that notes its arguments, and whose library is a copy of the one named here.
COMPILER = """#!/bin/sh
for argument; do
  if [ "$last" = -o ]; then output=$argument; fi
  last=$argument
done
printf '%s\\n' "$@" >> {log}
{extra}
cp {library} "$output"
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of the test's own, and no library that is named."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SYNCLINE_TORCH_NATIVE", "on")
    native.group_class.cache_clear()
    yield tmp_path
    native.group_class.cache_clear()


LIBRARY = pathlib.Path(os.environ.get("SYNCLINE_TORCH_NATIVE", "")).absolute()


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Stands in for g++, and for Python's headers; call it with further commands."""
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setattr(torch_native.sysconfig, "get_path", lambda _: str(headers))

    def install(extra=""):
        path = tmp_path / "compiler"
        log = tmp_path / "log"
        path.write_text(COMPILER.format(log=log, library=LIBRARY, extra=extra))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return log

    return install


def test_without_a_library_the_backend_in_python_is_taken_and_info_says_why():
    assert not native.is_native()
    assert "run python -m syncline.torch.build" in syncline.info.torch_backend()


def test_what_has_been_built_is_found_loaded_and_named(compiler):
    log = compiler()
    path = torch_native.build(VERSION)
    assert torch_native.find(VERSION).path == path
    assert native.is_native()
    assert str(path) in syncline.info.torch_backend()
    arguments = log.read_text().split("\n")
    assert str(torch_native.installed_torch().folder / "include") in arguments
    assert torch.__version__ in path.name and VERSION in path.name
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_can_be_switched_off(compiler, monkeypatch):
    compiler()
    torch_native.build(VERSION)
    monkeypatch.setenv("SYNCLINE_TORCH_NATIVE", "off")
    assert not native.is_native()
    assert syncline.info.torch_backend() == "backend in Python: SYNCLINE_TORCH_NATIVE is off"


def test_another_value_is_refused(monkeypatch):
    monkeypatch.setenv("SYNCLINE_TORCH_NATIVE", "of")
    with pytest.raises(ValueError, match="must be on, off or the path of a library, not 'of'"):
        native.is_native()


def test_a_named_library_that_does_not_load_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "none.so").write_text("no library")
    monkeypatch.setenv("SYNCLINE_TORCH_NATIVE", str(tmp_path / "none.so"))
    with pytest.raises(ImportError):
        native.group_class()


def test_a_library_in_the_cache_that_does_not_load_is_warned_of(compiler):
    compiler()
    path = torch_native.build(VERSION)
    path.write_text("what a full disk has left")
    with pytest.warns(RuntimeWarning, match="build --force"):
        assert not native.is_native()


@pytest.mark.parametrize("place", ["library", "folder"])
def test_a_library_that_others_may_write_is_not_loaded(compiler, place):
    compiler()
    path = torch_native.build(VERSION)
    (path if place == "library" else path.parent).chmod(0o777)
    assert not native.is_native()
    assert "others than its owner may write" in syncline.info.torch_backend()


def test_builders_at_once_do_not_see_each_others_parts(compiler):
    compiler('printf incomplete > "$output"; sleep 0.2')
    errors = []

    def build():
        try:
            torch_native.build(VERSION)
        except BaseException as error:
            errors.append(error)

    command = [
        sys.executable,
        "-c",
        f"from syncline import torch_native; torch_native.sysconfig.get_path = lambda _: "
        f"{str(torch_native.sysconfig.get_path('include'))!r}; torch_native.build({VERSION!r})",
    ]
    other = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    thread = threading.Thread(target=build)
    thread.start()
    path = torch_native.cache_folder()
    while other.poll() is None:
        for made in path.glob("*.so"):
            assert made.stat().st_size == LIBRARY.stat().st_size
    thread.join(60)
    assert not errors and other.returncode == 0
    assert [made.suffix for made in path.iterdir()] == [".so"]


def test_a_compiler_that_fails_or_lacks_is_told(compiler, monkeypatch):
    compiler("echo 'error: no such header' >&2; exit 3")
    with pytest.raises(RuntimeError, match="(?s)has failed .3.*no such header"):
        torch_native.build(VERSION)
    assert list(torch_native.cache_folder().iterdir()) == []
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="there is no compiler 'no-such-compiler'"):
        torch_native.build(VERSION)


def test_other_versions_of_torch_are_left_to_python(monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("__version__ = '2.99.0'\n")
    other = torch_native.torch_in(tmp_path)
    monkeypatch.setattr(torch_native, "installed_torch", lambda: other)
    assert "torch 2.99.0 is not 2.13" in torch_native.find(VERSION).reason
    with pytest.raises(RuntimeError, match="torch 2.99.0 is installed"):
        torch_native.build(VERSION)


def take_named_library(monkeypatch):
    monkeypatch.setenv("SYNCLINE_TORCH_NATIVE", str(LIBRARY))
    assert native.is_native()


def test_torchs_tools_see_the_operations(monkeypatch):
    """A profiler, a dispatch mode; and torch finds a backend in C++ for the CPU."""
    take_named_library(monkeypatch)

    def run(group):
        tensor = torch.ones(2)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            group.allreduce([tensor]).wait()
        names = {event.key for event in seen.key_averages()}
        with CommDebugMode() as mode:
            group.allreduce([tensor]).wait()
        return names, mode.get_total_counts(), tensor.tolist(), group._device_types

    for names, count, values, devices in torch_ranks.in_threads(1, run):
        assert {"c10d::allreduce_", "syncline:all_reduce"} <= names
        assert count == 1 and values == [1.0, 1.0]
        assert torch.device("cpu") in devices


def test_operations_in_the_background_keep_their_memory(monkeypatch):
    """Whoever forgets them."""
    take_named_library(monkeypatch)

    def run(group):
        for _ in range(20):
            group.allreduce([torch.ones(100_000)])
        group.allreduce([tensor := torch.ones(1)]).wait()
        return tensor.item()

    assert torch_ranks.in_threads(2, run) == [2.0, 2.0]


def test_operations_run_without_python(monkeypatch):
    """Those that FSDP, tensor parallelism and functional collectives call."""
    take_named_library(monkeypatch)

    def refuse(*_):
        raise AssertionError("an operation has come to Python")

    for name in ("allreduce", "all_gather_single", "reduce_scatter_single", "_run", "_start"):
        monkeypatch.setattr(f"syncline.torch.backend.process_group.Operations.{name}", refuse)

    def run(group):
        size = group.size()
        part, whole = torch.ones(4), torch.zeros(4 * size)
        group._allgather_base(whole, part).wait()
        group._reduce_scatter_base(part, whole).wait()
        group.allreduce([part]).wait()
        group.allgather_into_tensor_coalesced([whole], [part]).wait()
        group.barrier().wait()
        return part[0].item()

    assert torch_ranks.in_threads(2, run) == [4.0, 4.0]
