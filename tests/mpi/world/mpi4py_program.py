"""mpi4py sends, Syncline reduces: ranks of both are one, in one process."""

import numpy
import pytest
import syncline as dist
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

for backend in ("auto", "mpi"):
    dist.init_process_group(backend, comm=comm)
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    for step in range(50):
        received = numpy.empty(3)
        right, left = (rank + 1) % size, (rank - 1) % size
        comm.Sendrecv(numpy.full(3, rank + step, float), right, recvbuf=received, source=left)
        dist.all_reduce(received)
        assert (received == size * (size - 1) / 2 + size * step).all()
        assert comm.allreduce(step) == size * step
    group = dist.new_group(range(size), backend="mpi")
    total = numpy.array([rank])
    dist.all_reduce(total, group=group)
    assert total[0] == size * (size - 1) / 2
    dist.destroy_process_group()

# Half of the processes, in the other order.
half = comm.Split(rank % 2, -rank)
dist.init_process_group("mpi", comm=half)
assert (dist.get_rank(), dist.get_world_size()) == (half.Get_rank(), half.Get_size())
objects = [None] * half.Get_size()
dist.all_gather_object(objects, rank)
assert objects == half.allgather(rank)
dist.destroy_process_group()

with pytest.raises(ValueError, match="MPI_COMM_NULL"):
    dist.init_process_group(comm=MPI.COMM_NULL)
with pytest.raises(ValueError, match="comm replaces"):
    dist.init_process_group(comm=comm, rank=0)
with pytest.raises(ValueError, match="device_id must be a CUDA device"):
    dist.init_process_group("gloo", comm=comm, device_id="cpu")
dist.init_process_group("gloo", comm=comm, device_id=0)  # Which ignores it.
dist.barrier()
dist.destroy_process_group()
with pytest.raises(TypeError, match="communicator of mpi4py, not int"):
    dist.init_process_group(comm=5)
assert dist.is_mpi_available()
assert MPI.Is_initialized() and not MPI.Is_finalized()
comm.Barrier()
print("fine", flush=True)
