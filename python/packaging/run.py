"""`syncline-run` and `python -m syncline.run`: starts the workers of a job on this host.

    syncline-run --nproc-per-node=2 train.py --epochs 3

Scripts and modules are run by this interpreter, unless PYTHON_EXEC names another. See
`syncline-run --help`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the launcher, with the arguments of this process."""
    launcher = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "syncline-run")
    interpreter = os.environ.get("PYTHON_EXEC") or sys.executable
    os.execve(launcher, [launcher, *sys.argv[1:]], dict(os.environ, PYTHON_EXEC=interpreter))


if __name__ == "__main__":
    main()
