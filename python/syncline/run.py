"""`syncline-run` and `python -m syncline.run`: starts the workers of a job.

    syncline-run --nproc-per-node=2 train.py --epochs 3

Scripts and modules are run by this interpreter, unless PYTHON_EXEC names another. See
`syncline-run --help`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
# In an installed wheel; in the runfiles of a Bazel target that has //launch:syncline_run.
_PLACES = (
    os.path.join(_PACKAGE, "bin", "syncline-run"),
    os.path.join(os.path.dirname(os.path.dirname(_PACKAGE)), "launch", "syncline_run"),
)


def find_launcher() -> str:
    """The launcher's program; FileNotFoundError says where it was looked for."""
    launcher = next((place for place in _PLACES if os.path.isfile(place)), None)
    if launcher is None:
        raise FileNotFoundError(
            f"the launcher is at neither {' nor '.join(_PLACES)}: install the wheel, "
            "or add //launch:syncline_run to the program's data"
        )
    return launcher


def interpreter() -> str:
    """By which workers run."""
    return os.environ.get("PYTHON_EXEC") or sys.executable


def become_launcher(arguments: list[str]) -> NoReturn:
    """Ends this program, and is the launcher with these arguments from then on."""
    try:
        launcher = find_launcher()
    except FileNotFoundError as error:
        sys.exit(f"syncline-run: {error}")
    os.execve(launcher, [launcher, *arguments], dict(os.environ, PYTHON_EXEC=interpreter()))


def main() -> NoReturn:
    """Becomes the launcher, with the arguments of this process."""
    become_launcher(sys.argv[1:])


if __name__ == "__main__":
    main()
