"""PyTorch's tensors come in and go out without a copy, and both libraries live in one process."""

import sys

import numpy
import pypi_torch_status
import pytest

if pypi_torch_status.AVAILABLE and sys.argv[1:] != ["syncline_first"]:
    import torch
    import torch.distributed

import ranks
import syncline as dist
from syncline import _syncline, codec, functional

if pypi_torch_status.AVAILABLE:
    import torch
    import torch.distributed


@pytest.fixture(autouse=True)
def available():
    if not pypi_torch_status.AVAILABLE:
        pytest.skip(pypi_torch_status.REASON)


DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"


@pytest.fixture
def joined():
    """A job of one rank, whose all_gather copies the input to the one output."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("dtype", DTYPES.split())
def test_a_tensor_of_every_type_is_written_in_place(dtype):
    source = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    target = torch.zeros_like(source)
    address = target.data_ptr()
    dist.all_gather([target], source)
    assert torch.equal(target, source)
    assert target.data_ptr() == address


@pytest.mark.usefixtures("joined")
def test_a_parameter_that_requires_a_gradient_is_written_in_place():
    parameter = torch.nn.Parameter(torch.zeros(3))
    dist.all_gather([parameter], torch.arange(3.0))
    assert parameter.tolist() == [0, 1, 2]
    assert parameter.requires_grad


@pytest.mark.usefixtures("joined")
def test_a_strided_tensor_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"not contiguous .float32\[3, 2\].*x.contiguous()"):
        dist.all_reduce(torch.zeros(2, 3).T)


@pytest.mark.usefixtures("joined")
def test_a_tensor_without_memory_is_refused_with_its_cause():
    with pytest.raises(TypeError, match="tensor "):
        dist.all_reduce(torch.zeros(3).to_sparse())
    with pytest.raises(TypeError, match="tensor "):
        dist.all_reduce(torch.zeros(3, device="meta"))


@pytest.mark.usefixtures("joined")
def test_tensors_of_syncline_become_tensors_of_torch():
    reducer = _syncline.Reducer.create(dist.group.WORLD, [torch.zeros(2, 2, dtype=torch.bfloat16)])
    view = torch.from_dlpack(reducer.gradient(0))
    assert view.dtype == torch.bfloat16
    view += 1
    assert torch.from_dlpack(reducer.gradient(0)).sum() == 4


def test_ranks_reduce_tensors_of_torch():
    def run(world):
        tensor = torch.full((1000,), float(world.rank), dtype=torch.bfloat16)
        world.group.all_reduce(tensor)
        return tensor.tolist()

    assert ranks.in_threads(3, run, "gloo") == [[3.0] * 1000] * 3


def test_functions_return_tensors_of_torch():
    def run(world):
        x = torch.arange(6.0).reshape(2, 3).T.requires_grad_()  # Strided, and a leaf.
        y = functional.all_reduce(x, group=world.group)
        assert y.dtype == x.dtype and not y.requires_grad
        assert torch.equal(y, 2 * x.detach())
        assert functional.all_gather(y, world.group).shape == (2, 3, 2)
        received = functional.broadcast(y.to(torch.bfloat16), 1, world.group)
        assert received.dtype == torch.bfloat16
        objects = [None, None]
        dist.all_gather_object(
            objects, {"tensor": received, "empty": torch.zeros(0, 2)}, world.group
        )
        assert all(torch.equal(o["tensor"], received) for o in objects)
        assert all(o["empty"].shape == (0, 2) for o in objects)
        with pytest.raises(TypeError, match="sparse, quantized or meta"):
            dist.all_gather_object(objects, received.to_sparse(), world.group)

    ranks.in_threads(2, run)


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_tensors_of_every_type_are_carried_as_objects(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    for value in (tensor, tensor.T, tensor[0, 1]):
        carried = codec.decode(codec.encode(value))
        assert carried.dtype == value.dtype and torch.equal(carried, value)


def both_libraries():
    """Collectives of both, one after the other and side by side."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = torch.distributed.FileStore(ranks.shared_folder() + "/torch", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    for _ in range(3):
        ours, theirs = torch.ones(1000), torch.ones(1000)
        works = [dist.all_reduce(ours, async_op=True)]
        works += [torch.distributed.all_reduce(theirs, async_op=True)]
        for work in works:
            work.wait()
        assert ours.sum() == theirs.sum() == 1000 * size
    torch.distributed.destroy_process_group()
    dist.all_reduce(array := numpy.ones(3))
    assert array.sum() == 3 * size


@pytest.mark.parametrize("order", ["torch_first", "syncline_first"])
def test_both_libraries_reduce_in_one_process_whichever_is_imported_first(order):
    ranks.in_processes(2, __file__, order)


if __name__ == "__main__":
    ranks.main({"torch_first": both_libraries, "syncline_first": both_libraries})
