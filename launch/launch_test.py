"""Starts the launcher for real, and looks at what its workers and its user see."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from launch.job_for_tests import DEADLINE, RUN, SILENT_NAMES, Job, lines_of

# What workers are given.


def test_workers_see_the_whole_environment(python):
    code, out, err = python(
        "import json, os; print(json.dumps(dict(os.environ)))",
        "--nproc-per-node=3",
        "--max-restarts=2",
        "--role=trainer",
        "--rdzv-id=job7",
        env={"SYNCLINE_STORE": "stale:1", "RANK": "99"},
    ).finish()
    assert code == 0, err
    for rank in range(3):
        env = json.loads(lines_of(rank, out)[0])
        expected = {
            "LOCAL_RANK": rank,
            "RANK": rank,
            "GROUP_RANK": 0,
            "ROLE_RANK": rank,
            "ROLE_NAME": "trainer",
            "LOCAL_WORLD_SIZE": 3,
            "WORLD_SIZE": 3,
            "GROUP_WORLD_SIZE": 1,
            "ROLE_WORLD_SIZE": 3,
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 2,
            "TORCHELASTIC_RUN_ID": "job7",
            "TORCHELASTIC_USE_AGENT_STORE": False,
            "OMP_NUM_THREADS": 1,
            "PYTHONUNBUFFERED": 1,
        }
        assert {name: env[name] for name in expected} == {
            name: str(value) for name, value in expected.items()
        }
        assert 0 < int(env["MASTER_PORT"]) < 65536
        assert re.fullmatch(r"127\.0\.0\.1:\d+", env["SYNCLINE_STORE"])
        assert {"SYNCLINE_SECRET_FILE", "TORCHELASTIC_ERROR_FILE"} <= set(env)
    assert err.count("OMP_NUM_THREADS") == 1


def test_the_users_settings_are_left_alone(shell):
    env = {"OMP_NUM_THREADS": "5", "PYTHONUNBUFFERED": ""}
    code, out, err = shell(
        'echo "$OMP_NUM_THREADS,$PYTHONUNBUFFERED,$MASTER_PORT"',
        "--nproc-per-node=2",
        "--master-port=4711",
        env=env,
    ).finish()
    assert (code, lines_of(1, out), err) == (0, ["5,,4711"], "")


def test_the_secret_is_a_private_file_that_is_gone_afterwards(python):
    job = python(
        """
import os, sys
path = os.environ["SYNCLINE_SECRET_FILE"]
secret = open(path).read()
assert secret not in str(dict(os.environ)) + str(sys.argv)
assert secret not in open("/proc/%d/cmdline" % os.getppid()).read()
print(path, oct(os.stat(path).st_mode), oct(os.stat(os.path.dirname(path)).st_mode), secret)
sys.stdout.flush()
sys.stdin.read()
""",
        stdin=subprocess.PIPE,
    )
    path, mode, folder_mode, secret = job.expect("\n").split()
    assert stat.S_IMODE(int(mode, 8)) == 0o600
    assert stat.S_IMODE(int(folder_mode, 8)) == 0o700
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert os.path.exists(path)
    assert job.finish()[0] == 0
    assert not os.path.exists(os.path.dirname(path))


def test_the_store_outlives_rank_0(shell):
    job = shell(
        '[ $RANK = 0 ] && exit 0; echo "$SYNCLINE_STORE"; exec sleep 1000', "--nproc-per-node=2"
    )
    host, port = re.search(r"\[rank1\]: (.*):(\d+)\n", job.expect("\n")).groups()
    socket.create_connection((host, int(port)), timeout=DEADLINE).close()
    job.process.terminate()
    assert job.finish()[0] == 143


def test_modules_and_arguments_reach_python(launch, tmp_path):
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])")
    code, out, err = launch("-m", "mod", "--max-restarts", "-x", "").finish()
    assert (code, out) == (0, "__main__ ['--max-restarts', '-x', '']\n"), err


def test_run_path_gives_the_script_its_own_main_arguments_and_folder(launch, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 7")
    (folder / "script.py").write_text(
        "import beside, sys; print(__name__, beside.value, sys.argv[1:], __file__)"
    )
    code, out, err = launch("--run-path", "folder/script.py", "-x", "").finish()
    assert (code, out) == (0, "__main__ 7 ['-x', ''] folder/script.py\n"), err


def test_with_virtual_local_ranks_each_worker_has_one_device(shell):
    code, out, err = shell(
        'echo "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"',
        "--nproc-per-node=2",
        "--virtual-local-rank",
        env={"CUDA_VISIBLE_DEVICES": "5,7"},
    ).finish()
    assert code == 0, err
    assert (lines_of(0, out), lines_of(1, out)) == (["0 0 5"], ["1 0 7"])


def test_virtual_local_ranks_need_enough_devices(shell):
    code, _, err = shell(
        "true", "--nproc-per-node=2", "--virtual-local-rank", env={"CUDA_VISIBLE_DEVICES": "5"}
    ).finish()
    assert code == 1
    assert "CUDA_VISIBLE_DEVICES=5 names 1 device(s): none is left for local rank 1" in err


def cpus_of(line):
    parts = [part.split("-") for part in line.split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}


@pytest.mark.parametrize("mode", ["node", "socket", "core-complex"])
def test_numa_binding_sets_the_cpus_that_a_worker_may_use(python, mode):
    code, out, err = python(
        "print(open('/proc/self/status').read().split('Cpus_allowed_list:')[1].split()[0])",
        "--numa-binding=" + mode,
    ).finish()
    assert code == 0, err
    cpus = cpus_of(out.strip())
    mine = os.sched_getaffinity(0)
    first = cpus & cpus_of(open("/sys/devices/system/node/node0/cpulist").read())
    assert cpus and cpus <= mine and first == cpus


def test_exclusive_numa_binding_shares_cores_out_or_says_why_not(shell):
    mine = sorted(os.sched_getaffinity(0))
    job = shell(
        "grep Cpus_allowed_list /proc/$$/status | cut -f2",
        "--nproc-per-node=2",
        "--numa-binding=exclusive",
        preexec_fn=lambda: os.sched_setaffinity(0, mine[:2]),
    )
    code, out, err = job.finish()
    if code == 0:
        cpus = [cpus_of(lines_of(rank, out)[0]) for rank in (0, 1)]
        assert cpus[0] and cpus[1] and not cpus[0] & cpus[1]
    else:  # Both are siblings of one core.
        assert "has fewer cores" in err


def test_workers_have_sessions_and_groups_of_their_own(python):
    code, out, err = python(
        "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))", "--nproc-per-node=2"
    ).finish()
    assert (code, lines_of(0, out), lines_of(1, out)) == (0, ["True"], ["True"]), err


def test_only_rank_0_reads_the_launchers_input(shell):
    job = shell(
        'while read line; do echo "got $line"; done', "--nproc-per-node=2", stdin=subprocess.PIPE
    )
    out, _ = job.process.communicate(b"a\nb\n", timeout=DEADLINE)
    assert (job.process.returncode, out) == (0, b"[rank0]: got a\n[rank0]: got b\n")


# Mistakes.


@pytest.mark.parametrize(
    "args, message",
    [
        (["--nprocs-per-node=2", "x.py"], "Did you mean --nproc-per-node?"),
        (["nosuch.py"], "the script 'nosuch.py' cannot be read: No such file"),
        (["--no-python", "nosuch-program"], "there is no program 'nosuch-program' in PATH"),
        (["--nnodes=2", "x.py"], "nothing says where the nodes meet"),
        ([], "no script"),
    ],
)
def test_a_mistake_is_explained_before_anything_starts(launch, args, message):
    code, out, err = launch(*args).finish()
    assert (code, out) == (2, "")
    assert message in err


def test_a_file_that_is_no_program_is_explained(launch, tmp_path):
    (tmp_path / "broken").write_text("no interpreter line")
    (tmp_path / "broken").chmod(0o755)
    code, _, err = launch("--nproc-per-node=2", "--no-python", "./broken").finish()
    assert code == 1
    assert "rank 0 could not be started: './broken' cannot be run: Exec format error" in err


def test_logs_that_cannot_be_written_are_explained_at_once(shell, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = shell("echo never", "--log-dir=file/logs").finish()
    assert code == 1
    assert "Not a directory" in err
    assert "still there" not in err


# As `bazel run //launch:run` starts it.

SHOW = """
import json, os, sys
print(json.dumps([os.getcwd(), sys.executable, os.environ["PYTHONPATH"].split(":"),
                  os.environ["SYNCLINE_RUNFILES"]]))
"""


def preload(library):
    return {"LD_PRELOAD": ":".join(filter(None, [os.environ.get("LD_PRELOAD"), library]))}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("option", ["--rdzv-endpoint=host.silent", "--local-addr=host.silent"])
def test_a_signal_ends_the_search_for_an_address(shell, number, option):
    job = shell(
        "echo never",
        "--nnodes=2",
        "--rdzv-endpoint=127.0.0.1",
        option,
        env=preload(SILENT_NAMES),
    )
    said = job.process.stderr.readline().decode()
    while "looking up host.silent" not in said:
        said = job.process.stderr.readline().decode()
        assert said, "the launcher has ended"
    job.process.send_signal(number)
    before = time.monotonic()
    code, out, err = job.finish()
    assert time.monotonic() - before < 15  # An unanswered lookup takes 30 s.
    assert (code, out) == (128 + number, "")
    assert err.endswith("%s received before any worker was started\n" % number.name)


def test_a_signal_that_is_passed_on_does_not_end_the_search_for_an_address(shell):
    job = shell(
        "echo never",
        "--nnodes=2",
        "--rdzv-endpoint=127.0.0.1",
        "--local-addr=host.unknown",  # Is looked up again until read_timeout.
        "--rdzv-conf=read_timeout=4",
        env=preload(SILENT_NAMES),
    )
    assert b"--rdzv-id" in job.process.stderr.readline()  # It handles signals now.
    began = time.monotonic()
    while job.process.poll() is None:
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.01)
    assert time.monotonic() - began > 0.9
    code, _, err = job.finish()
    assert code == 1 and "finds no way to the rendezvous" in err


def test_status_looks_up_no_longer_than_it_has_time(launch):
    before = time.monotonic()
    code, out, err = launch("status", "host.silent:1", env=preload(SILENT_NAMES)).finish()
    assert time.monotonic() - before < 15
    assert code == 3 and out == "" and "host.silent" in err


def run_from(tmp_path, env):
    there = tmp_path / "there"
    there.mkdir()
    (there / "script.py").write_text(SHOW)
    env = dict(env, BUILD_WORKING_DIRECTORY=str(there), PYTHONPATH="/users/own")
    code, out, err = Job(tmp_path, ["script.py"], program=RUN, env=env).finish()
    assert code == 0, err
    cwd, interpreter, paths, runfiles = json.loads(out)
    assert cwd == str(there)  # Where the user stands.
    assert paths[-1] == "/users/own"
    assert os.path.isdir(runfiles)
    return interpreter, [path for path in paths[:-1] if path.startswith(runfiles)]


def test_run_gives_all_of_its_imports_to_its_own_interpreter(tmp_path):
    interpreter, paths = run_from(tmp_path, {})
    assert interpreter == sys.executable
    assert paths


def test_run_gives_only_syncline_to_the_users_environment(tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(sys.executable)
    interpreter, paths = run_from(
        tmp_path, {"VIRTUAL_ENV": str(tmp_path / "venv"), "PYTHON_EXEC": ""}
    )
    assert interpreter == str(python)
    assert [p for p in paths if not os.path.exists(p + "/syncline/__init__.py")] == []
