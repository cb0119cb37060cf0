"""What elastic_launch and its workers leave for each other in a folder."""

from __future__ import annotations

import os

CALL = "call"
PREPARATION = "preparation"


def result_path(folder: str, round: int, rank: int) -> str:
    return os.path.join(folder, f"result_{round}_{rank}")


def error_path(folder: str, round: int, rank: int) -> str:
    return os.path.join(folder, f"error_{round}_{rank}.json")
