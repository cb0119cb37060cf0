"""The manual shows the capability table that the program prints."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"


def test_the_manual_shows_what_the_program_prints():
    printed = subprocess.run(
        [ROOT / "backends/info"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    table = printed.partition("\n\n")[2]
    assert table.startswith("| operation |")
    assert table in (ROOT / "docs/capabilities.md").read_text()
