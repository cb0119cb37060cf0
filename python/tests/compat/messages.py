"""send, recv, isend, irecv, as in the tutorial "Writing distributed applications"."""

import importlib
import sys

import syncline as dist

xp = importlib.import_module(sys.argv[1])

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

# Blocking.
tensor = xp.zeros(1)
if rank == 0:
    tensor += 1
    dist.send(tensor=tensor, dst=1)
elif rank == 1:
    assert dist.recv(tensor=tensor, src=0) == 0
    assert tensor[0] == 1

# Not blocking.
tensor = xp.zeros(4)
request = None
if rank == 0:
    tensor += 2
    request = dist.isend(tensor=tensor, dst=1)
elif rank == 1:
    request = dist.irecv(tensor=tensor, src=0)
if request is not None:
    request.wait()
    assert request.is_completed()
    assert tensor.tolist() == [2.0] * 4

# From whichever rank sends first, with a tag.
if rank == 0:
    seen = []
    for _ in range(size - 1):
        tensor = xp.zeros(1)
        sender = dist.recv(tensor, tag=5)
        assert tensor[0] == sender
        seen.append(sender)
    assert sorted(seen) == list(range(1, size))
else:
    dist.send(xp.ones(1) * rank, 0, tag=5)

# Tags are apart, and the group may be given.
if rank == 0:
    first = dist.isend(xp.ones(1), 1, tag=1)
    second = dist.isend(xp.ones(1) * 2, 1, dist.group.WORLD, 2)
    first.wait()
    second.wait()
elif rank == 1:
    tensor = xp.zeros(1)
    dist.recv(tensor, 0, dist.group.WORLD, 2)
    assert tensor[0] == 2
    dist.recv(tensor, 0, tag=1)
    assert tensor[0] == 1

# A ring.
send_buffer, recv_buffer = xp.ones(3) * rank, xp.zeros(3)
request = dist.isend(send_buffer, (rank + 1) % size)
dist.recv(recv_buffer, (rank - 1) % size)
request.wait()
assert recv_buffer.tolist() == [float((rank - 1) % size)] * 3

dist.destroy_process_group()
