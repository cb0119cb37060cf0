"""`python -m syncline.launch`, `--no-prefix`, `--interactive` and syncline.breakpoint."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from syncline import launch, run

LIMIT = 60
SCRIPT = "import os, sys; print(os.environ['RANK'], sys.argv[1:])\n"
BREAKS = """
import array, sys
import syncline as dist
dist.init_process_group()
rank = dist.get_rank()
try:
    dist.breakpoint(1)
except RuntimeError as error:
    sys.exit(f"here rank {rank} hears: {error}")
rank += 10
total = array.array("q", [rank])
dist.all_reduce(total)
print("rank", rank, "of", total[0], flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "breaks.py").write_text(BREAKS)
    paths = [str(tmp_path), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def launched(environment, folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "syncline.launch", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_scripts_get_their_local_rank_as_an_argument(environment, tmp_path):
    code, lines, err = launched(
        environment, tmp_path, "--nproc_per_node", "2", "script.py", "--epochs", "3"
    )
    assert code == 0, err
    assert lines == [f"[rank{r}]: {r} ['--local-rank={r}', '--epochs', '3']" for r in (0, 1)]


@pytest.mark.parametrize("option", ["--use-env", "--use_env"])
def test_with_use_env_they_do_not(environment, tmp_path, option):
    _, lines, _ = launched(environment, tmp_path, "--nproc-per-node=2", option, "script.py", "a")
    assert lines == ["[rank0]: 0 ['a']", "[rank1]: 1 ['a']"]


def test_a_module_gets_it_too_and_in_torch_1s_spelling(environment, tmp_path):
    environment["SYNCLINE_LOCAL_RANK_ARGUMENT"] = "--local_rank"
    _, lines, err = launched(environment, tmp_path, "-m", "script", "a")
    assert lines == ["0 ['--local_rank=0', 'a']"], err


def test_a_program_without_python_gets_none(environment, tmp_path):
    code, _, err = launched(environment, tmp_path, "--no-python", "/bin/true")
    assert code == 1 and "--no-python needs --use-env" in err
    assert launched(environment, tmp_path, "--use-env", "--no-python", "/bin/true")[0] == 0


def test_every_switch_of_the_launcher_is_known_to_take_no_value():
    shown = subprocess.run(
        [run.find_launcher(), "--help"], capture_output=True, text=True, timeout=LIMIT
    ).stdout
    switches = set(re.findall(r"^ +(?:-\w, +)?(--[a-z-]+)(?:$|  )", shown, re.MULTILINE))
    assert {"--standalone", "--no-prefix"} <= switches
    assert switches <= launch._SWITCHES
    assert "--nnodes" not in launch._SWITCHES
    options = set(re.findall(r"^ +(?:-\w, +)?--([a-z-]+)", shown, re.MULTILINE))
    assert options | {"use-env"} == {*launch._SWITCH_NAMES, *launch._VALUE_NAMES}


def test_switches_may_be_shortened(environment, tmp_path):
    code, lines, err = launched(
        environment, tmp_path, "--stand", "--no_pre", "--nproc_per=2", "script.py", "--stand"
    )
    assert code == 0, err
    assert lines == [f"{r} ['--local-rank={r}', '--stand']" for r in (0, 1)]
    assert launched(environment, tmp_path, "--use", "--mod", "script", "a")[1] == ["0 ['a']"]
    assert launched(environment, tmp_path, "--mod", "script")[1] == ["0 ['--local-rank=0']"]
    code, _, err = launched(environment, tmp_path, "--no-p", "script.py")
    assert code != 0 and "--no-p may mean --no-python or --no-prefix" in err


def test_without_a_prefix_lines_are_torchruns(environment, tmp_path):
    code, lines, err = launched(
        environment, tmp_path, "--use-env", "--no-prefix", "--nproc-per-node=2", "script.py"
    )
    assert (code, lines) == (0, ["0 []", "1 []"]), err
    code, _, err = launched(
        environment, tmp_path, "--no-prefix", "--log-line-prefix-template=x", "script.py"
    )
    assert code == 2 and "--no-prefix contradicts" in err


def on_a_terminal(environment, command, answers):
    """What the command shows on a terminal where each of `answers` follows on a text."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment)
    shown, seen, end = "", 0, time.monotonic() + LIMIT
    answers = list(answers)
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(terminal, 4096)
        except OSError:  # The other side has ended.
            break
        shown += data.decode(errors="replace")
        if answers and answers[0][0] in shown[seen:]:
            seen = len(shown)
            os.write(terminal, answers.pop(0)[1].encode())
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_a_breakpoint_stops_one_rank_on_the_launchers_terminal(environment, tmp_path):
    command = [sys.executable, "-m", "syncline.run", "--status-line=never", "--nproc-per-node=2"]
    asked = "(Pdb, rank 1) "
    code, shown = on_a_terminal(
        environment,
        [*command, str(tmp_path / "breaks.py")],
        [(asked, "p 100 + rank\n"), (asked, "n\n"), (asked, "n\n"), (asked, "c\n")],
    )
    assert code == 0, shown
    assert "-> dist.breakpoint(1)" in shown and "101" in shown
    assert "-> rank += 10" in shown and "-> total = " in shown
    assert "rank 10 of 21" in shown and "rank 11 of 21" in shown


def test_ctrl_c_stops_a_job_of_a_program_once(environment, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import signal, sys, time\n"
        "from syncline.elastic import SignalException, run\n"
        "def work():\n"
        "    def save(*_):\n"
        "        time.sleep(0.5)\n"
        "        print('saved', flush=True)\n"
        "        sys.exit(0)\n"
        "    signal.signal(signal.SIGINT, save)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(100)\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        run(work)\n"
        "    except SignalException as error:\n"
        "        print('stopped by', error.sigval.name)\n"
    )
    code, shown = on_a_terminal(environment, [sys.executable, str(script)], [("ready", "\x03")])
    assert code == 0, shown
    assert "saved" in shown and "stopped by SIGINT" in shown


def test_without_a_terminal_a_breakpoint_says_so(environment, tmp_path):
    code, _, err = launched(
        environment, tmp_path, "--use-env", "--nproc-per-node=2", str(tmp_path / "breaks.py")
    )
    assert code == 1
    for rank in (0, 1):
        assert f"here rank {rank} hears: rank 1: breakpoint has no terminal" in err


def test_breakpoints_that_are_set_at_the_prompt_stop_it(environment, tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(
        "import syncline as dist\n"
        "def work():\n"
        "    return 1\n"
        "dist.breakpoint(0)\n"
        "x = work()\n"
        "print('done', x)\n"
    )
    asked = "(Pdb, rank 0) "
    code, shown = on_a_terminal(
        environment,
        [sys.executable, str(script)],
        [(asked, "b work\n"), (asked, "c\n"), (asked, "c\n")],
    )
    assert code == 0, shown
    assert "-> return 1" in shown and "done 1" in shown


def test_an_interactive_worker_has_the_terminal(environment, tmp_path):
    script = tmp_path / "asks.py"
    script.write_text(
        "import os, sys\n"
        "if os.environ['RANK'] == '1':\n"
        "    assert sys.stdin.isatty() and sys.stdout.isatty()\n"
        "    print('hello', input('who? '))\n"
        "else:\n"
        "    assert sys.stdin.read() == ''\n"
    )
    command = [sys.executable, "-m", "syncline.run", "--interactive=1", "--nproc-per-node=2"]
    code, shown = on_a_terminal(environment, [*command, str(script)], [("who? ", "me\n")])
    assert code == 0, shown
    assert "hello me" in shown and "[rank1]" not in shown
