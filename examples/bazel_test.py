"""The workspace of examples/bazel is built by a Bazel of its own, and its program runs.

SYNCLINE_EXAMPLE_OPTIONS, which --test_env passes on, has further options for the builds, such as
--disk_cache=FOLDER.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

SOURCES = pathlib.Path(__file__).resolve().parent.parent
OPTIONS = os.environ.get("SYNCLINE_EXAMPLE_OPTIONS", "").split()

HTTP_ARCHIVE = """
load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")

http_archive(
    name = "syncline",
    strip_prefix = "syncline-0",
    urls = ["file://%s"],
)
"""

LINKED_WITHOUT = """
cc_binary(
    name = "without",
    srcs = ["hello.cc"],
    deps = ["@syncline//core/join"],
)
"""


class Workspace:
    """A copy of the example in which `bazel(command, ...)` runs."""

    def __init__(self, folder):
        self.folder = folder / "hello"
        self.output_root = folder / "bazel"
        shutil.copytree(
            SOURCES / "examples/bazel", self.folder, ignore=shutil.ignore_patterns("bazel-*")
        )

    def replace_repository(self, declaration):
        text = (self.folder / "WORKSPACE").read_text()
        start, end = text.index("local_repository("), text.index("load(")
        (self.folder / "WORKSPACE").write_text(text[:start] + declaration + text[end:])

    def bazel(self, *command, expect=0):
        # The machine's rc file turns options on that are not the user's.
        start = ["bazel", f"--output_user_root={self.output_root}", "--max_idle_secs=30"]
        result = subprocess.run(
            [*start, *command],
            cwd=self.folder,
            env={name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
            | {"HOME": str(pathlib.Path("~").expanduser())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3000,
        )
        assert result.returncode == expect, result.stdout[-6000:]
        return result.stdout


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace(tmp_path)
    yield workspace
    workspace.bazel("shutdown")
    # What Bazel makes is not writable, and would stay behind.
    subprocess.run(["chmod", "-R", "u+w", tmp_path], check=True)
    shutil.rmtree(tmp_path)


def test_all_labels_of_a_local_repository_are_found_and_may_be_used(workspace):
    workspace.replace_repository(f'local_repository(name = "syncline", path = "{SOURCES}")\n\n')
    workspace.bazel("build", "--nobuild", "//:hello", "@syncline//launch:syncline_run")


def test_the_inside_of_syncline_is_not_for_other_workspaces(workspace):
    workspace.replace_repository(f'local_repository(name = "syncline", path = "{SOURCES}")\n\n')
    with open(workspace.folder / "BUILD", "a") as file:
        file.write(LINKED_WITHOUT)
    assert "not visible" in workspace.bazel("build", "--nobuild", "//:without", expect=1)


def test_an_archive_is_built_and_its_program_runs(workspace, tmp_path):
    archive = tmp_path / "syncline.tar.gz"
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=SOURCES)
    subprocess.run(
        [
            "tar",
            "-C",
            SOURCES,
            "--null",
            "-T",
            "-",
            "--transform=s,^,syncline-0/,",
            "-czf",
            archive,
        ],
        input=files,
        check=True,
    )
    workspace.replace_repository(HTTP_ARCHIVE % archive)
    workspace.bazel("build", *OPTIONS, "//:hello", "@syncline//launch:syncline_run")
    launcher = workspace.folder / "bazel-bin/external/syncline/launch/syncline_run"
    output = subprocess.check_output(
        [launcher, "--standalone", "--nproc-per-node=2", "--no-python", "bazel-bin/hello"],
        cwd=workspace.folder,
        text=True,
        timeout=60,
    )
    lines = sorted(line.split("]: ")[-1].strip() for line in output.splitlines())
    assert [line[line.index("rank") :] for line in lines] == ["rank 0 of 2: 1", "rank 1 of 2: 1"]
