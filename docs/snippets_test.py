"""Each piece of Python in a document runs as a script, and prints what its comments say.

A comment that ends in "prints TEXT" says what the next line of the output is.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

DOCS = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline/docs"
SECONDS = 200
PRINTS = re.compile(r"#.*\bprints (.+)$", re.MULTILINE)


def snippets(name):
    """The pieces of Python of a document, with the numbers of their first lines."""
    text = (DOCS / name).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start()) + 2, match[1]) for match in found]


CASES = [
    pytest.param(name, line, code, id=f"{name}:{line}")
    for name in ("multiprocessing.md",)
    for line, code in snippets(name)
]


def test_the_documents_have_snippets():
    assert len(CASES) >= 4
    assert all(PRINTS.search(case.values[2]) for case in CASES)


@pytest.mark.parametrize(("name", "line", "code"), CASES)
def test_a_snippet_runs_and_prints_what_it_says(name, line, code, tmp_path):
    script = tmp_path / "snippet.py"
    script.write_text("\n" * (line - 1) + code)  # So that errors name the document's lines.
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # With its children.
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, output
    assert output.splitlines() == PRINTS.findall(code), output
