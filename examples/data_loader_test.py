"""Runs the example of a data loader, as its users do."""

import re

import pytest
from running import EXAMPLES, run


@pytest.mark.parametrize("ranks", [1, 2])
def test_loaders_feed_the_ranks_that_train(ranks, tmp_path):
    output = run(
        f"--nproc-per-node={ranks}",
        *(EXAMPLES / "data_loader.py", "--limit=9600", "--epochs=1"),
        cwd=tmp_path,
    )
    first, last, accuracy = re.search(
        r"loss ([\d.]+) to ([\d.]+); test accuracy ([\d.]+)%", output
    ).groups()
    assert float(last) < 0.6 * float(first), output
    assert float(accuracy) > 60, output
    assert re.search(rf"[\d,]+ images/s, {ranks} ranks, 2 loaders", output)


def test_the_comparison_has_a_row_for_each_system(tmp_path):
    output = run(
        "--nproc-per-node=1",
        *(EXAMPLES / "data_loader.py", "--compare", "--limit=1200", "--rounds=1", "--batches=10"),
        cwd=tmp_path,
    )
    for name in ("TensorQueue", "syncline.multiprocessing.Queue", "multiprocessing.Queue"):
        assert re.search(
            rf"\| {re.escape(name)} \| [\d,]+ \| [\d.]+ \| [\d,]+ \| [\d.]+ \|", output
        ), output
