"""Tensors of torch: they move into shared memory, as in torch.multiprocessing."""

import gc
import os
import subprocess
import sys

import leaks
import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline.multiprocessing as mp
import torch
import torch_children

METHODS = ("fork", "spawn", "forkserver")
pytestmark = pytest.mark.usefixtures("strategy")
torch.set_num_threads(1)  # A child of fork has none of its parent's threads.


def through(value):
    """What arrives of `value`."""
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(value)
        return reader.recv()


@pytest.mark.parametrize("method", METHODS)
def test_both_sides_see_each_others_writes(method):
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.SimpleQueue()
    child = context.Process(target=torch_children.fill, args=(inbox, outbox))
    child.start()
    tensor = torch.zeros(100)
    view = tensor[10:]
    large = torch.zeros(300, 300)
    inbox.put(([view, large], 5.0))
    got_view, got_large = outbox.get()
    assert view.eq(5).all()
    assert tensor.sum() == 450
    assert large.eq(5).all()
    got_view[0] = -1
    got_large[0, 0] = -2
    assert tensor[10] == -1
    assert large[0, 0] == -2
    assert mp.is_shared(tensor)
    assert mp.is_shared(view.numpy())
    inbox.put(None)
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("fork", "file_system"), ("spawn", "file_descriptor"), ("forkserver", "file_system")],
    indirect=["strategy"],
)
def test_processes_train_one_model(method):
    model = torch.nn.Linear(3, 3)
    model.share_memory()  # Of torch: it is handed over as it is.
    ours = mp.share_memory_(torch.nn.Linear(3, 3))
    assert all(mp.is_shared(parameter) for parameter in ours.parameters())
    context = mp.get_context(method)
    children = [
        context.Process(target=torch_children.train, args=((model, ours), rank)) for rank in (0, 2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for each in (model, ours):
        assert each.bias[::2].tolist() == [1, 3]
        assert each.weight[:, ::2].tolist() == [[1, 3]] * 3


def test_tensors_arrive_after_their_producer_has_ended():
    context = mp.get_context("fork")
    outbox = context.Queue()
    child = context.Process(target=torch_children.make, args=(outbox, 50))
    child.start()
    child.join(60)
    assert [outbox.get(timeout=30)[0].item() for _ in range(50)] == list(range(50))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.complex64,
    ],
)
def test_each_element_type_arrives(dtype):
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    got = through(tensor)
    assert got.dtype == dtype
    assert got.float().equal(tensor.float()) if dtype != torch.complex64 else got.equal(tensor)


def test_layouts_arrive():
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    for view in (
        tensor.permute(2, 0, 1),
        tensor[:, 1:, ::2],
        tensor[0, 0, 0],
        tensor.expand(2, 3, 4),
    ):
        got = through(view)
        assert got.stride() == view.stride()
        assert got.equal(view)
    assert through(torch.zeros(0, 3)).shape == (0, 3)
    complex_tensor = torch.tensor([1 + 2j, 3 - 1j])
    assert through(complex_tensor.conj()).equal(complex_tensor.conj())
    assert through(complex_tensor.conj().imag).equal(complex_tensor.conj().imag)


def test_views_keep_sharing_their_base():
    tensor = torch.arange(10.0)
    first, second = through((tensor[2:], tensor[:5]))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    third = through(tensor)  # In another message.
    first[0] = 50
    assert second[2] == third[2] == tensor[2] == 50
    back = through(first)
    assert back.data_ptr() == tensor[2:].data_ptr() or mp.is_shared(back)
    back[0] = 60
    assert tensor[2] == 60


def test_what_autograd_needs_arrives():
    leaf = torch.ones(3, requires_grad=True)
    assert through(leaf).requires_grad
    parameter = through(torch.nn.Parameter(torch.ones(3), requires_grad=False))
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad
    with pytest.raises(RuntimeError, match="detach"):
        through(leaf * 2)


def test_a_model_arrives_whole():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model[0].weight = torch.nn.Parameter(model[0].weight)
    got = through(model)
    for name, tensor in model.state_dict().items():
        assert got.state_dict()[name].equal(tensor)
    with torch.no_grad():
        got[0].bias.fill_(3)
    assert model[0].bias.eq(3).all()


def test_other_layouts_travel_as_torch_sends_them():
    sparse = torch.eye(4).to_sparse()
    assert through(sparse).to_dense().equal(torch.eye(4))


def test_memory_is_freed_with_the_last_tensor():
    gc.collect()
    before = leaks.descriptors(), leaks.mappings()
    for _ in range(100):
        tensor = torch.zeros(20_000)
        got = through([tensor, tensor[5:]])
    assert leaks.mappings() - before[1] <= 1
    del tensor, got
    assert (leaks.descriptors(), leaks.mappings()) == before


def test_many_tensors_in_one_message_share_segments():
    tensors = [torch.full((10,), float(i)) for i in range(1000)]
    got = through(tensors)
    assert all(one[0] == i for i, one in enumerate(got))
    got[7].fill_(-1)
    assert tensors[7].eq(-1).all()
    assert leaks.mappings() < 10


def test_empty_shared_is_handed_over():
    tensor = mp.empty_shared(10, torch.float32)
    got = through(tensor)
    got[3] = 4
    assert tensor[3] == 4


def test_torchs_own_module_is_as_it_was():
    script = """
import torch, torch.multiprocessing as tmp
from multiprocessing.reduction import ForkingPickler
before = dict(ForkingPickler._extra_reducers)
import syncline.multiprocessing as mp
mp.SimpleQueue().put(torch.ones(3))
assert ForkingPickler._extra_reducers == before
queue = tmp.get_context("fork").SimpleQueue()
queue.put(torch.ones(3))
got = queue.get()
assert got.is_shared() and not mp.is_shared(torch.ones(3))
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=100)
