"""What the checks of this folder share: how they are called, and what they print."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(name, check):
    """Prints the complaints of check(root) about the folder on the command line, or ROOT.

    Returns the exit status: 1 if there are any, and then a line that leads to `name`, the check.
    """
    complaints = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for complaint in complaints:
        print(complaint)
    if complaints:
        print(f"{name}: see its first lines for what to do", file=sys.stderr)
    return 1 if complaints else 0
