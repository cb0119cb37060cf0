"""run.sh and run_tests.py: what they pack is there, and no result is taken for another."""

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

# Where Bazel has put what is made, beside the sources.
FOLDER = pathlib.Path(os.environ.get("TEST_SRCDIR", ".")).absolute() / "syncline/tests/gpu"
sys.path.insert(0, str(FOLDER))

import run_tests  # noqa: E402

SCRIPT = FOLDER / "run.sh"


def test_script_is_valid_shell():
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=60)


def test_lists_of_labels_are_those_of_build():
    labels = set(re.findall(r"(?m)^(?:  |wheel=)(//[\w/]+:\w+)$", SCRIPT.read_text()))
    assert labels == set((FOLDER / "packed").read_text().split())


def test_programs_that_run_are_packed():
    packed = {label[2:].replace(":", "/") for label in (FOLDER / "packed").read_text().split()}
    run = set()
    for step in run_tests.steps(run_tests.Machine()):
        run.update(
            os.path.relpath(each, run_tests.HERE + "/bin")
            for each in step.command
            if each.startswith(run_tests.HERE + "/bin/")
        )
    assert run == packed - {"python/wheel_local"}


def test_scripts_that_run_are_there_and_are_python():
    run = {
        os.path.relpath(each, run_tests.HERE)
        for step in run_tests.steps(run_tests.Machine())
        for each in step.command
        if each.startswith(run_tests.HERE + "/arrays/")
    }
    assert run
    for path in run:
        compile((FOLDER / path).read_text(), path, "exec")


def test_parts_that_were_kept_are_joined_and_a_lost_one_is_noticed(tmp_path):
    library = os.urandom(150_000)
    wheel = tmp_path / "nccl.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", library)
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.read_text().replace("part_bytes=$((50 << 20))", "part_bytes=60000"))
    env = dict(os.environ, SYNCLINE_GPU_KEPT=str(tmp_path / "kept"), TMPDIR=str(tmp_path))

    def call(*arguments):
        return subprocess.run(
            ["bash", script, *arguments],
            env=env,
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )

    assert call("parts", wheel, tmp_path / "parts").returncode == 0
    parts = sorted((tmp_path / "parts").glob("*/*"))
    assert len(parts) == 3
    assert b"has no parts" in call("join").stdout
    for part in parts[:2]:
        assert call("keep", part).returncode == 0
    assert b"has 2 of 3 parts" in call("join").stdout
    damaged = tmp_path / parts[2].name
    damaged.write_bytes(b"x" * parts[2].stat().st_size)
    assert call("keep", damaged).returncode == 0
    assert b"not what was split" in call("join").stdout
    assert call("keep", parts[2]).returncode == 0
    assert call("join").returncode == 0
    assert (tmp_path / "kept/nvidia/nccl/lib/libnccl.so.2").read_bytes() == library


def program(tmp_path, text):
    """A program of Python, which stands for one that was packed."""
    path = tmp_path / "program"
    path.write_text("#!%s\nimport os, sys, time\n%s\n" % (sys.executable, text))
    path.chmod(0o755)
    return str(path)


# A GoogleTest of three tests, of which the second does what `second` says.
GTEST = """
excluded = [a for a in sys.argv if a.startswith("--gtest_filter")][0][2:].partition("-")[2]
names = [n for n in ("A.One", "A.Two", "A.Three") if n not in excluded.split(":")]
print("Running %%d tests from 1 test suite." %% len(names), flush=True)
failed = 0
for name in names:
    print("[ RUN      ] " + name, flush=True)
    result = "OK"
    if name == "A.Two":
        %s
    failed |= result == "FAILED"
    print("[ %%8s ] %%s (3 ms)" %% (result, name), flush=True)
sys.exit(failed)
"""


@pytest.mark.parametrize(
    "second, result, notes",
    [
        ("pass", run_tests.PASSED, ["3 passed"]),
        ("result = '  FAILED'.strip()", run_tests.FAILED, ["2 passed", "1 failed: A.Two"]),
        (
            "os.abort()",
            run_tests.FAILED,
            ["2 passed", "1 ended the process or hung: A.Two (signal SIGABRT)"],
        ),
        ("result = ' SKIPPED'.strip()", run_tests.PASSED, ["2 passed", "1 skipped"]),
        ("sys.exit(0)", run_tests.FAILED, ["2 passed", "1 ended the process or hung: A.Two"]),
    ],
)
def test_every_way_a_test_ends_is_told(tmp_path, second, result, notes):
    path = program(tmp_path, GTEST % second)
    step = run_tests.Step("gtest", [path, "--gtest_filter=*"], 60, is_gtest=True)
    outcome, _ = run_tests.run_step(step, 60, str(tmp_path / "log"))
    assert outcome.result == result
    for note in notes:
        assert note in outcome.note


def test_a_test_that_hangs_ends_with_what_it_has_started(tmp_path):
    path = program(tmp_path, GTEST % "time.sleep(1000)")
    step = run_tests.Step("gtest", [path, "--gtest_filter=*"], 3, is_gtest=True)
    outcome, _ = run_tests.run_step(step, 60, str(tmp_path / "log"))
    assert outcome.result == run_tests.FAILED
    assert "A.Two" in outcome.note and "1 not run" in outcome.note


def test_a_test_that_hangs_does_not_keep_the_others_from_running(tmp_path):
    path = program(tmp_path, GTEST % "time.sleep(1000)")
    step = run_tests.Step("gtest", [path, "--gtest_filter=*"], 60, is_gtest=True)
    outcome, _ = run_tests.run_step(step, 60, str(tmp_path / "log"), test_seconds=2)
    assert outcome.result == run_tests.FAILED
    assert "2 passed; 1 ended the process or hung: A.Two (hung)" in outcome.note


def test_a_test_that_a_signal_ends_is_run_again_for_what_nccl_says(tmp_path):
    path = program(tmp_path, GTEST % "print(os.environ.get('NCCL_DEBUG')); os.abort()")
    step = run_tests.Step("gtest", [path, "--gtest_filter=*"], 60, is_gtest=True)
    run_tests.run_step(step, 60, str(tmp_path / "log"))
    log = (tmp_path / "log").read_text()
    assert log.count("ended: signal SIGABRT") == 2


def test_programs_that_fail_or_cannot_run_are_no_passes(tmp_path):
    log = str(tmp_path / "log")
    broken = run_tests.Step("broken", [program(tmp_path, "print('why'); sys.exit(3)")], 60)
    assert run_tests.run_step(broken, 60, log)[0] == (run_tests.FAILED, "status 3: why")
    lost = run_tests.Step("lost", [str(tmp_path / "nothing")], 60)
    assert run_tests.run_step(lost, 60, log)[0].result == run_tests.FAILED
    needy = run_tests.Step("needy", broken.command, 60, needs=lambda: "no card")
    assert run_tests.run_step(needy, 60, log)[0] == (run_tests.NOT_RUN, "no card")
    assert run_tests.run_step(broken, 0, log)[0] == (run_tests.NOT_RUN, "no time left")
    empty = run_tests.Step("empty", [program(tmp_path, ""), "--gtest_filter=*"], 60, is_gtest=True)
    assert run_tests.run_step(empty, 60, log)[0].result == run_tests.FAILED


def test_summary_counts_what_was_not_reached(tmp_path):
    step = run_tests.Step("later", ["x"], 1)
    rows = [
        ("one", run_tests.Outcome(run_tests.PASSED, "3 | 4"), 1.0),
        ("two", run_tests.Outcome(run_tests.FAILED, ""), 2.0),
    ]
    last = run_tests.write_summary(str(tmp_path / "summary.md"), ["a machine"], rows, [step])
    assert last == "1 passed, 1 failed, 1 not run"
    text = (tmp_path / "summary.md").read_text()
    assert "| later | not run | | not reached yet |" in text and "3 \\| 4" in text
