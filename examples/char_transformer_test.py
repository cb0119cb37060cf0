"""The transformer through the launcher: it learns, and restarts change nothing."""

import json

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

from running import EXAMPLES
from running import run as run_job

SMALL = ["--width=32", "--depth=2", "--heads=2", "--context=32", "--batch-size=24", "--sample=40"]


def run(folder, *options, ranks=2, restarts=0, expect=0):
    """Runs the example; returns what it printed and its figures."""
    result = folder / "result.json"
    launcher = [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    script = [EXAMPLES / "char_transformer.py", *SMALL, "--result", result, *options]
    output = run_job(*launcher, *script, cwd=folder, expect=expect)
    return output, json.loads(result.read_text()) if expect == 0 else None


def test_it_learns_and_all_ranks_have_learned_the_same(tmp_path):
    output, figures = run(tmp_path, "--steps=60", "--report-every=20")
    assert "round 0: 2 ranks, from step 0" in output
    assert "step 60: loss" in output
    assert (figures["steps"], figures["ranks"], len(figures["losses"])) == (60, 2, 60)
    # An untrained model knows nothing of 96 characters: ln 96 = 4.56.
    assert 4.2 < figures["losses"][0] < 5.2
    assert sum(figures["losses"][-5:]) / 5 < 3.3


def test_after_a_failure_it_comes_to_the_same_weights(tmp_path):
    failed, undisturbed = tmp_path / "failed", tmp_path / "undisturbed"
    failed.mkdir()
    undisturbed.mkdir()
    options = ["--steps=12", "--checkpoint-every=4"]
    output, after_failure = run(
        failed, *options, "--checkpoint", failed / "state", "--fail-at=6:1", restarts=1
    )
    assert "rank 1 fails at step 6" in output
    assert "round 1: 2 ranks, from step 4" in output
    _, figures = run(undisturbed, *options)
    assert (after_failure["round"], figures["round"]) == (1, 0)
    assert after_failure["weights"] == figures["weights"]


def test_neither_micro_batches_nor_ranks_change_what_is_computed(tmp_path):
    saved = ["--checkpoint", tmp_path / "state"]
    _, whole = run(tmp_path, "--steps=6", "--micro-batches=1", *saved)
    _, cut = run(tmp_path, "--steps=6", "--micro-batches=3")
    assert cut["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    output, more = run(tmp_path, "--steps=9", *saved, ranks=3)
    assert "round 0: 3 ranks, from step 6" in output
    _, alone = run(tmp_path, "--steps=6", ranks=1)
    assert len(more["losses"]) == 3 and alone["ranks"] == 1


def test_a_batch_smaller_than_the_job_is_refused(tmp_path):
    output, _ = run(tmp_path, "--batch-size=1", "--steps=1", expect=1)
    assert "--batch-size 1" in output
