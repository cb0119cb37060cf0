"""`python -m syncline.elastic._worker FOLDER`: one worker of elastic_launch.

Calls what the launching process has left in FOLDER, and leaves the result there.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from syncline import failures
from syncline.elastic import by_value
from syncline.elastic.files import CALL, PREPARATION, error_path, result_path


def main(folder: str) -> None:
    rank, round = int(os.environ["RANK"]), int(os.environ.get("SYNCLINE_ROUND", "0"))
    try:
        with open(os.path.join(folder, PREPARATION), "rb") as file:
            preparation, python_path = pickle.load(file)
        # This worker alone needed another one; the user's own programs must not.
        os.environ.pop("PYTHONPATH", None)
        if python_path is not None:
            os.environ["PYTHONPATH"] = python_path
        with _importing_main():
            multiprocessing.spawn.prepare(preparation)
            with open(os.path.join(folder, CALL), "rb") as file:
                function, arguments = by_value.loads(file.read())
        try:
            result = function(*arguments)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
            result = None
        try:
            data = by_value.dumps(result)
        except Exception as error:
            raise TypeError(
                f"rank {rank}: what {getattr(function, '__name__', 'the function')} returns, "
                f"{type(result).__name__}, cannot be pickled: {error}"
            ) from error
    except Exception as error:
        failures.record(error)
        _keep_error_file(error_path(folder, round, rank))
        raise
    path = result_path(folder, round, rank)
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)


@contextlib.contextmanager
def _importing_main() -> Iterator[None]:
    """Makes a job or process that the main module would start without a guard an error.

    Each worker would start the whole job again. multiprocessing has the same mark.
    """
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True
    try:
        yield
    finally:
        del process._inheriting


def _keep_error_file(path: str) -> None:
    """The launcher's own is gone when it has ended."""
    try:
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "rb") as file:
            text = file.read()
        with open(path, "wb") as file:
            file.write(text)
    except (KeyError, OSError):
        pass


if __name__ == "__main__":
    # The name by which multiprocessing's children know their parent's main module.
    folder = sys.argv[1]
    sys.argv[1:] = []
    main(folder)
