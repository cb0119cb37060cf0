"""Compiles the native backend of torch.distributed: `python -m syncline.torch.build`.

It takes the torch that is installed, and a compiler; the result is kept in a cache of the user's,
and found there by all later processes with this torch, Python and Syncline.
"""

from __future__ import annotations

import argparse
import sys

from syncline import torch_native
from syncline._syncline import Info
from syncline.torch.backend import native


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m syncline.torch.build",
        description="Compiles the native backend of torch.distributed for the torch installed.",
    )
    parser.add_argument("--force", action="store_true", help="also if it has been built before")
    given = parser.parse_args()
    found = torch_native.find(Info.version())
    if found.path is not None and not given.force:
        print(f"{found.path} is there already ({found.reason})")
        return
    print("compiling, which takes a minute or two", flush=True)
    try:
        path = torch_native.build(Info.version())
        native.load(path)
    except (ImportError, OSError, RuntimeError) as error:
        sys.exit(f"syncline.torch.build: {error}")
    print(f"built {path}")


if __name__ == "__main__":
    main()
