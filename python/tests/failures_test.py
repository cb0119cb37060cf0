"""What a launcher and the peers learn of an exception that ends a process."""

import json
import os
import subprocess
import sys
import time

import pytest
import syncline as dist
from syncline import failures

JOIN = """
import os, sys, time, syncline as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", "file://" + os.environ["STORE"], rank=rank, world_size=2)
"""


def run_ranks(tmp_path, code, size=2):
    """Runs `code` on ranks that have joined; returns exit code, stderr and error file of each."""
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RANK": str(rank),
            "STORE": str(tmp_path / "store"),
            "TORCHELASTIC_ERROR_FILE": str(tmp_path / f"error_{rank}.json"),
        }
        command = [sys.executable, "-c", JOIN + code]
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    results = []
    try:
        for rank, process in enumerate(processes):
            _, err = process.communicate(timeout=60)
            path = tmp_path / f"error_{rank}.json"
            recorded = json.loads(path.read_text())["message"] if path.exists() else None
            results.append((process.returncode, err, recorded))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results


def test_an_uncaught_exception_is_recorded_and_reported_to_the_peers(tmp_path):
    before = time.time()
    zero, one = run_ranks(
        tmp_path,
        """
if rank == 1:
    raise ValueError("boom")
dist.barrier()
""",
    )
    code, err, recorded = one
    assert code == 1
    assert "ValueError: boom" in err
    assert recorded["message"] == "ValueError: boom"
    info = recorded["extraInfo"]
    assert "ValueError: boom" in info["py_callstack"]
    assert before - 1 <= int(info["timestamp"]) <= info["syncline_time"] <= time.time()
    assert info["syncline_peer_error"] is False

    code, err, recorded = zero
    assert code == 1
    assert "rank 1 failed: ValueError: boom" in err
    assert "rank 1 failed: ValueError: boom" in recorded["message"]
    assert recorded["extraInfo"]["syncline_peer_error"] is True
    assert recorded["extraInfo"]["syncline_time"] > info["syncline_time"]


def test_an_error_tells_which_rank_has_died(tmp_path):
    zero, one = run_ranks(
        tmp_path,
        """
dist.barrier()
open(os.environ["STORE"] + f" past {rank}", "w").close()
if rank == 1:
    while not os.path.exists(os.environ["STORE"] + " past 0"):
        time.sleep(0.001)
    os.kill(os.getpid(), 9)
try:
    dist.barrier()
except dist.DistNetworkError as error:
    sys.exit(f"{error.ranks} {error.operation} {error.sequence}")
""",
    )
    assert one[0] == -9
    assert zero[1].strip().endswith("(1,) barrier 1")


def test_an_error_that_was_recorded_already_is_left_alone(tmp_path):
    _, one = run_ranks(
        tmp_path,
        """
if rank == 1:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write('{"message": "by somebody else"}')
    raise ValueError("boom")
""",
    )
    assert one[2] == "by somebody else"


def caught(function):
    try:
        function()
    except BaseException as error:
        return error


def reraise_from(error):
    raise KeyError("wrapped") from error


def fail_while_handling(error):
    try:
        raise error
    except BaseException:
        raise KeyError("cleanup")  # noqa: B904


def hide(error):
    try:
        raise error
    except BaseException:
        raise KeyError("unrelated") from None


@pytest.mark.parametrize(
    "error, expected",
    [
        (dist.DistBackendError("peer"), True),
        (dist.DistTimeoutError("peer"), True),
        (caught(lambda: reraise_from(dist.DistNetworkError("peer"))), True),
        (caught(lambda: fail_while_handling(dist.DistNetworkError("peer"))), True),
        (caught(lambda: hide(dist.DistNetworkError("peer"))), False),
        (dist.DistError("already initialized"), False),
        (ValueError("own"), False),
    ],
)
def test_errors_that_come_from_peers_are_distinguished(error, expected):
    assert failures.is_peer_error(error) is expected


@pytest.fixture
def hook():
    """An excepthook that was there before."""

    def own(*_):
        pass

    before, sys.excepthook = sys.excepthook, own
    yield own
    sys.excepthook = before


def test_the_hook_that_was_there_comes_back(hook):
    for _ in range(2):
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        assert sys.excepthook is not hook
        dist.destroy_process_group()
        assert sys.excepthook is hook


def test_a_hook_that_was_set_later_stays(hook):
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    ours = sys.excepthook
    sys.excepthook = later = lambda *arguments: ours(*arguments)
    dist.destroy_process_group()
    assert sys.excepthook is later
    later(ValueError, ValueError("passed on"), None)


def test_a_group_joined_again_beside_a_library_that_wraps_the_hook_reports_once(hook):
    reported = []
    passed_on = []
    sys.excepthook = lambda *arguments: passed_on.append(arguments)
    for _ in range(3):
        failures.watch(reported.append)
        ours = sys.excepthook
        sys.excepthook = lambda *arguments, ours=ours: ours(*arguments)
        failures.watch(reported.append)
    error = ValueError("boom")
    sys.excepthook(ValueError, error, None)
    assert reported == ["ValueError: boom"]
    assert passed_on == [(ValueError, error, None)]
    failures.unwatch()
    sys.excepthook(ValueError, ValueError("after leaving"), None)
    assert reported == ["ValueError: boom"]
    assert len(passed_on) == 2
