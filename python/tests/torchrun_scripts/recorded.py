"""Rank 1 fails, under torch's @record."""

import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("what rank 1 has to say")


if __name__ == "__main__":
    main()
