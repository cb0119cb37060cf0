"""The ways to join: by a file and by TCP, with ranks and with ranks assigned, and by a store."""

import importlib
import os
import sys

import syncline as dist

xp = importlib.import_module(sys.argv[1])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
file = os.environ["INIT_FILE"]


def sum_of_ranks():
    tensor = xp.ones(1) * dist.get_rank()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(sum(range(size)))]
    assert dist.get_world_size() == size
    dist.destroy_process_group()


dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
assert dist.get_rank() == rank
sum_of_ranks()

dist.init_process_group("gloo", init_method=f"file://{file}2?rank={rank}&world_size={size}")
assert dist.get_rank() == rank
sum_of_ranks()

# Ranks are assigned.
dist.init_process_group("gloo", init_method=f"file://{file}3", world_size=size, group_name="a")
sum_of_ranks()

dist.init_process_group(
    "gloo", store=dist.PrefixStore("mine", dist.FileStore(file + "4", size)), rank=rank,
    world_size=size,
)  # fmt: skip
sum_of_ranks()

host, port = os.environ["SYNCLINE_STORE"].split(":")
store = dist.TCPStore(host, int(port), size, False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, group_name="b")
sum_of_ranks()
