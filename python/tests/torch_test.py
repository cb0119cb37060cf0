"""PyTorch's tensors come in and go out without a copy, and both libraries live in one process."""

import gc
import sys
import weakref

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


def test_tensors_come_in_without_python_code(monkeypatch, joined):
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no C exchange API")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", None)
    monkeypatch.setattr(torch.Tensor, "__dlpack_device__", None)
    for target in (torch.zeros(3), torch.nn.Parameter(torch.zeros(3)), Plain(torch.zeros(3))):
        dist.all_gather([target], torch.arange(3.0))
        assert target.tolist() == [0, 1, 2]


class Plain(torch.Tensor if pypi_torch_status.AVAILABLE else object):
    """A subclass that changes nothing."""


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 3, 4), (100_003,)])
def test_tensors_of_any_shape_come_in(joined, shape):
    source = torch.rand(shape)
    target = torch.zeros(shape)
    dist.all_gather([target], source)
    assert torch.equal(target, source)


def test_a_part_of_a_tensor_is_written_and_no_more(joined):
    whole = torch.zeros(4, 3)
    dist.all_gather([whole[2]], torch.arange(3.0))
    dist.all_gather([whole[::2][:1][:, :1]], torch.full((1, 1), 7.0))  # Strides that do not matter.
    assert whole.tolist() == [[7, 0, 0], [0, 0, 0], [0, 1, 2], [0, 0, 0]]


def test_a_tensor_of_one_element_spread_over_many_is_refused(joined):
    with pytest.raises(ValueError, match="not contiguous"):
        dist.all_reduce(torch.zeros(1).expand(3))


def test_a_result_of_autograd_is_written_in_place(joined):
    result = torch.ones(3, requires_grad=True) * 2
    dist.all_gather([result], torch.arange(3.0))
    assert result.tolist() == [0, 1, 2]
    assert result.requires_grad


WITHOUT_MEMORY = {
    "sparse": lambda: torch.zeros(3).to_sparse(),
    "sparse rows": lambda: torch.zeros(3, 3).to_sparse_csr(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "zeros that are not stored": lambda: torch._efficientzerotensor(3),
    "fake": lambda: fake(),
    "wrapper": lambda: Wrapper(torch.ones(3)),
}


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


class Wrapper(torch.Tensor if pypi_torch_status.AVAILABLE else object):
    """Has the shape and the type of a tensor, but its memory only through Python."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"Wrapper has no {function}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", list(WITHOUT_MEMORY))
def test_a_tensor_without_memory_is_refused_with_its_cause(joined, kind):
    with pytest.raises(TypeError, match=r"^tensor .*(cannot be shared: .+|has no memory)"):
        dist.all_reduce(WITHOUT_MEMORY[kind]())


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e8m0fnu", "complex32"])
def test_an_unknown_element_type_is_named(joined, dtype):
    tensor = torch.zeros(3, dtype=getattr(torch, dtype))
    with pytest.raises(TypeError, match=f"tensor has elements of type torch.{dtype}, which"):
        dist.all_reduce(tensor)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_moved_bit_by_bit_and_not_reduced(joined, dtype):
    source = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    target = torch.zeros_like(source)
    dist.all_gather([target], source)
    assert torch.equal(target.view(torch.uint8), source.view(torch.uint8))
    with pytest.raises(NotImplementedError, match=f"does not serve all_reduce of {dtype}$"):
        dist.all_reduce(target)
    shared = dist.empty_shared(256, source.dtype)
    assert shared.dtype == source.dtype
    dist.all_gather([shared], source)
    assert torch.equal(shared.view(torch.uint8), source.view(torch.uint8))


def test_a_tensor_that_is_not_what_lies_in_memory_is_refused(joined):
    conjugated = torch.tensor([1 + 2j, 3 + 4j]).conj()
    with pytest.raises(TypeError, match="tensor cannot be shared: .*conjugate"):
        dist.all_reduce(conjugated)
    with pytest.raises(TypeError, match=r"tensor cannot be shared: .*negated.*resolve_neg"):
        dist.all_reduce(torch._neg_view(torch.ones(3)))
    dist.all_reduce(conjugated.resolve_conj())
    dist.all_reduce(conjugated.imag.resolve_neg().contiguous())


def test_a_subclass_that_redirects_torchs_functions_is_asked_itself(joined):
    asked = []

    class Redirecting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs or {})

    target = torch.zeros(3).as_subclass(Redirecting)
    dist.all_gather([target], torch.arange(3.0))
    assert "__dlpack__" in asked
    assert torch.Tensor.tolist(target) == [0, 1, 2]


def test_a_tensor_lives_until_the_operation_in_the_background_is_over():
    start = dist.ProcessGroup.broadcast_async.__wrapped__  # Remembers no result.

    def run(world):
        if world.rank == 1:
            world.store.get("dropped")
            world.group.broadcast(numpy.zeros(3), root=0)
            world.group.barrier()
            return
        memory = numpy.arange(3.0)
        alive = weakref.ref(memory)
        work = start(world.group, torch.from_numpy(memory), 0)
        del memory
        gc.collect()
        assert alive() is not None
        world.store.set("dropped", b"")
        world.group.barrier()  # Behind the broadcast: once it is over, nobody has the tensor.
        assert alive() is None
        work.wait()

    ranks.in_threads(2, run)


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
