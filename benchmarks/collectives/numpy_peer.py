"""Syncline from Python with NumPy arrays."""

import numpy

from benchmarks.collectives import peer, syncline_system


def main() -> None:
    options = peer.parse_options()

    def new_array(count: int) -> "numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]":
        return numpy.zeros(count, numpy.float32)

    library = f"NumPy {numpy.__version__}"
    peer.serve(options, lambda: syncline_system.SynclineSystem(options, new_array, library))


if __name__ == "__main__":
    main()
