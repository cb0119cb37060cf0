"""Scripts for torchrun run under syncline-run as they are, and do there the same.

Each test makes its assertions of both launchers, except one in which torchrun itself is not
dependable.
"""

import json
import os
import pathlib
import subprocess
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

from torch.distributed.run import get_args_parser  # noqa: E402

SCRIPTS = pathlib.Path(__file__).parent / "torchrun_scripts"
LAUNCHERS = {
    "syncline-run": [os.path.abspath("launch/syncline_run")],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
LIMIT = 240  # Seconds; far more than is needed.

# What torchrun sets about its own way of working; no script reads it.
TORCHRUNS_OWN = {"TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_LOG_LEVEL"}


def environment(folder):
    dropped = ("SYNCLINE_", "TORCHELASTIC_", "PET_", "OMP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**kept, "PYTHONPATH": paths, "PYTHON_EXEC": sys.executable, "TMPDIR": str(folder)}


def run(launcher, script, folder, *options):
    """Runs the script on two ranks, which write to `folder`; returns exit code and stderr."""
    command = [*LAUNCHERS[launcher], "--standalone", "--nproc-per-node=2", *options]
    done = subprocess.run(
        [*command, str(SCRIPTS / script), str(folder)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return done.returncode, done.stderr


def written(folder):
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(2)]


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    return request.param


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What all_reduce.py saw on each rank, by launcher."""
    result = {}
    for name in LAUNCHERS:
        folder = tmp_path_factory.mktemp(name)
        code, err = run(name, "all_reduce.py", folder, "--max-restarts=2", "--role=trainer")
        assert code == 0, err
        result[name] = written(folder)
    return result


def test_a_collective_over_gloo_works(seen, launcher):
    for rank, saw in enumerate(seen[launcher]):
        assert saw["sum"] == [1, 3, 5, 7, 9]
        assert saw["ranks"] == [0, 1]
        assert (saw["elastic"], saw["local"]) == (True, rank)


def test_scripts_are_told_the_same(seen):
    ours, theirs = seen["syncline-run"], seen["torchrun"]
    assert [saw["facts"] for saw in ours] == [saw["facts"] for saw in theirs]
    assert ours[1]["facts"]["ROLE_NAME"] == "trainer"


def test_no_variable_is_missing(seen):
    ours, theirs = (set(seen[name][0]["variables"]) for name in LAUNCHERS)
    assert theirs - ours <= TORCHRUNS_OWN


def test_distributed_data_parallel_learns_the_same(tmp_path):
    reports = {}
    for name in LAUNCHERS:
        folder = tmp_path / name
        folder.mkdir()
        code, err = run(name, "ddp.py", folder)
        assert code == 0, err
        reports[name] = written(folder)
        first, second = reports[name]
        assert first["weights"] == second["weights"]
        assert first["losses"][-1] < first["losses"][0] / 2
    assert reports["syncline-run"] == reports["torchrun"]


def test_a_recorded_exception_is_reported_with_its_rank(launcher, tmp_path):
    code, err = run(launcher, "recorded.py", tmp_path)
    assert code == 1
    assert "what rank 1 has to say" in err
    assert "rank 1" in err or "rank      : 1" in err


def test_a_failure_restarts_all_ranks(tmp_path):
    # Under torchrun 2.13 the ranks of the second attempt now and then refuse each other's
    # connections, or wait for each other for ever.
    code, err = run("syncline-run", "restarted.py", tmp_path, "--max-restarts=1")
    assert code == 0, err
    assert written(tmp_path) == [1, 1]


def test_without_a_restart_left_the_job_fails(launcher, tmp_path):
    code, _ = run(launcher, "restarted.py", tmp_path)
    assert code == {"syncline-run": 3, "torchrun": 1}[launcher]
    assert not (tmp_path / "rank0").exists()


# A value for each option of torchrun that takes one and names no choices; others take 1.
OPTION_VALUES = {
    "event_log_handler": "console",
    "local_ranks_filter": "0",
    "log_dir": "logs",
    "logs_specs": "default",
    "node_rank": "0",
    "nnodes": "1:1",
    "rdzv_backend": "c10d",
    "rdzv_conf": "join_timeout=5",
    "rdzv_endpoint": "localhost:29400",
    "redirects": "3",
    "signals_to_handle": "SIGTERM,SIGUSR2",
    "tee": "0:1",
}


def test_every_option_of_torchrun_is_one_of_the_launcher(tmp_path):
    script = tmp_path / "script.py"
    script.touch()
    seen = 0
    for action in get_args_parser()._actions:
        for option in action.option_strings:
            if action.dest == "help":
                continue
            value = action.choices[0] if action.choices else OPTION_VALUES.get(action.dest, "1")
            given = [option] if action.nargs == 0 else [option, str(value)]
            done = subprocess.run(
                [*LAUNCHERS["syncline-run"], "--dry-run", *given, str(script)],
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            assert done.returncode == 0, (given, done.stderr)
            seen += 1
    assert seen > 50
