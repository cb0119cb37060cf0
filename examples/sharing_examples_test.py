"""Runs the examples of arrays between processes, as their users do."""

import re

from running import EXAMPLES, run


def test_programs_of_three_languages_share_an_array_and_a_queue(tmp_path):
    programs = [EXAMPLES / "sharing", EXAMPLES / "sharing_java"]
    output = run("--nproc-per-node=1", EXAMPLES / "sharing.py", *programs, cwd=tmp_path)
    counts = re.findall(r"(C\+\+|Java) has consumed (\d+) batches", output)
    assert sorted(language for language, _ in counts) == ["C++", "Java"], output
    assert sum(int(count) for _, count in counts) == 200
    assert "200 batches were consumed by 2 programs" in output
