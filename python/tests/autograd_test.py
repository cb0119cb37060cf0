"""torch.distributed.nn and DistributedSampler for groups of Syncline; torch.Size as an object."""

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import ranks  # noqa: E402
import syncline as dist  # noqa: E402
import torch  # noqa: E402
from syncline import process_groups  # noqa: E402
from syncline.codec import decode, encode  # noqa: E402
from syncline.nn import functional  # noqa: E402
from syncline.torch import DistributedSampler  # noqa: E402

SIZE = 3


def leaf(rank, *shape):
    """Different on each rank."""
    values = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    return (values + 10 * rank).requires_grad_()


def weights(rank, *shape):
    """What the results are multiplied by, so that gradients differ."""
    return leaf(rank, *shape).detach() * (rank + 2)


def everyone(make):
    return [make(rank) for rank in range(SIZE)]


def test_all_reduce_reduces_gradients():
    def run(world):
        x = leaf(world.rank, 2)
        y = functional.all_reduce(x * 1.0, group=world.group)
        assert torch.equal(y, sum(everyone(lambda r: leaf(r, 2))))
        (y * weights(world.rank, 2)).sum().backward()
        assert torch.equal(x.grad, sum(everyone(lambda r: weights(r, 2))))

    ranks.in_threads(SIZE, run)


def test_broadcast_and_reduce_are_each_others_inverse():
    def run(world):
        x = leaf(world.rank, 2)
        y = functional.broadcast(x, 1, world.group)
        assert torch.equal(y, leaf(1, 2))
        (y * weights(world.rank, 2)).sum().backward()
        total = sum(everyone(lambda r: weights(r, 2)))
        assert torch.equal(x.grad, total if world.rank == 1 else torch.zeros(2))

        x = leaf(world.rank, 2)
        y = functional.reduce(x, 2, group=world.group)
        if world.rank == 2:
            assert torch.equal(y, sum(everyone(lambda r: leaf(r, 2))))
        (y * weights(world.rank, 2)).sum().backward()
        assert torch.equal(x.grad, weights(2, 2))

    ranks.in_threads(SIZE, run)


def test_gather_and_scatter_are_each_others_inverse():
    def run(world):
        x = leaf(world.rank, 2)
        parts = functional.gather(x, 1, world.group)
        if world.rank == 1:
            assert [part.tolist() for part in parts] == everyone(lambda r: leaf(r, 2).tolist())
        sum((part * (r + 1)).sum() for r, part in enumerate(parts)).backward()
        assert torch.equal(x.grad, torch.full((2,), world.rank + 1.0))

        mine = [leaf(world.rank, 2) for _ in range(SIZE)]
        y = functional.scatter([part * (r + 1) for r, part in enumerate(mine)], 1, world.group)
        assert torch.equal(y, leaf(1, 2) * (world.rank + 1))
        (y * weights(world.rank, 2)).sum().backward()
        for r, part in enumerate(mine):
            expected = weights(r, 2) * (r + 1) if world.rank == 1 else torch.zeros(2)
            assert torch.equal(part.grad, expected)

    ranks.in_threads(SIZE, run)


def test_all_gather_and_reduce_scatter_are_each_others_inverse():
    def run(world):
        group, rank = world.group, world.rank
        x = leaf(rank, 2)
        parts = functional.all_gather(x, group)
        assert [part.tolist() for part in parts] == everyone(lambda r: leaf(r, 2).tolist())
        sum((part * weights(rank, 2) * (r + 1)).sum() for r, part in enumerate(parts)).backward()
        expected = (rank + 1) * sum(everyone(lambda r: weights(r, 2)))
        assert torch.equal(x.grad, expected)

        x = leaf(rank, 2)
        y = functional._all_gather_base(torch.empty(2 * SIZE), x, group)
        assert torch.equal(y, torch.cat(everyone(lambda r: leaf(r, 2))))
        (y * torch.cat([weights(rank, 2) * (r + 1) for r in range(SIZE)])).sum().backward()
        assert torch.equal(x.grad, expected)

        parts = [leaf(rank, 2) for _ in range(SIZE)]
        y = functional.reduce_scatter(torch.empty(2), parts, group=group)
        assert torch.equal(y, sum(everyone(lambda r: leaf(r, 2))))
        (y * weights(rank, 2)).sum().backward()
        assert [part.grad.tolist() for part in parts] == everyone(lambda r: weights(r, 2).tolist())

    ranks.in_threads(SIZE, run)


def test_all_to_all_sends_gradients_back():
    def run(world):
        group, rank = world.group, world.rank
        parts = [leaf(rank, 2) * (r + 1) for r in range(SIZE)]
        for part in parts:
            part.retain_grad()
        received = functional.all_to_all(list(torch.empty(SIZE, 2)), parts, group)
        assert [y.tolist() for y in received] == everyone(
            lambda r: (leaf(r, 2) * (rank + 1)).tolist()
        )
        sum((y * weights(rank, 2) * (r + 1)).sum() for r, y in enumerate(received)).backward()
        assert [part.grad.tolist() for part in parts] == everyone(
            lambda r: (weights(r, 2) * (rank + 1)).tolist()
        )

        # Rank r sends s + 1 rows to rank s.
        x = leaf(rank, 6)
        splits = [rank + 1] * SIZE, [1, 2, 3]
        y = functional.all_to_all_single(torch.empty(3 * rank + 3), x, *splits, group=group)
        (y * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [1, 2, 2, 3, 3, 3]

    ranks.in_threads(SIZE, run)


def cut(whole, places):
    """Views of `whole`, so that one leaf stands for a list."""
    return [whole[r * 2 : r * 2 + 2] for r in range(places)]


# Of each operation: what rank r computes of its leaf of 6 numbers, and what it comes to in terms of
# all leaves, with plain operations. Rank 1 is the root.
SECOND = {
    "all_reduce": (lambda x, r, g: functional.all_reduce(x * 1, group=g), lambda xs, r: sum(xs)),
    "broadcast": (lambda x, r, g: functional.broadcast(x * 1, 1, g), lambda xs, r: xs[1]),
    "reduce": (
        lambda x, r, g: functional.reduce(x * 1, 1, group=g) * (r == 1),
        lambda xs, r: sum(xs) * (r == 1),
    ),
    "gather": (
        lambda x, r, g: torch.cat(functional.gather(x * 1, 1, g)),
        lambda xs, r: torch.cat(xs) * (r == 1),
    ),
    "scatter": (
        lambda x, r, g: functional.scatter(cut(x, SIZE), 1, g),
        lambda xs, r: cut(xs[1], SIZE)[r],
    ),
    "all_gather": (
        lambda x, r, g: torch.cat(functional.all_gather(x * 1, g)),
        lambda xs, r: torch.cat(xs),
    ),
    "_all_gather_base": (
        lambda x, r, g: functional._all_gather_base(torch.empty(6 * SIZE), x * 1, g),
        lambda xs, r: torch.cat(xs),
    ),
    "reduce_scatter": (
        lambda x, r, g: functional.reduce_scatter(torch.empty(2), cut(x, SIZE), group=g),
        lambda xs, r: cut(sum(xs), SIZE)[r],
    ),
    "all_to_all": (
        lambda x, r, g: torch.cat(
            functional.all_to_all([torch.empty(2) for _ in range(SIZE)], cut(x, SIZE), g)
        ),
        lambda xs, r: torch.cat([cut(x, SIZE)[r] for x in xs]),
    ),
    "all_to_all_single": (
        lambda x, r, g: functional.all_to_all_single(
            torch.empty(3 * (r + 1)), x * 1, [r + 1] * SIZE, [1, 2, 3], g
        ),
        lambda xs, r: torch.cat([x[[0, 1, 3][r] : [1, 3, 6][r]] for x in xs]),
    ),
}


@pytest.mark.parametrize("operation", SECOND)
def test_second_derivatives_are_those_of_one_process(operation):
    """Of the cubes of the results of all ranks: a product with their Hessian."""
    run_here, alone = SECOND[operation]

    def run(world):
        x = leaf(world.rank, 6)
        y = run_here(x, world.rank, world.group)
        loss = (y**3 * (world.rank + 1)).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (first * weights(world.rank, 6)).sum().backward()
        return first.detach(), x.grad

    xs = everyone(lambda r: leaf(r, 6))
    total = sum((alone(xs, r) ** 3 * (r + 1)).sum() for r in range(SIZE))
    firsts = torch.autograd.grad(total, xs, create_graph=True, materialize_grads=True)
    sum((first * weights(r, 6)).sum() for r, first in enumerate(firsts)).backward()
    for x, first, (mine, second) in zip(xs, firsts, ranks.in_threads(SIZE, run), strict=True):
        assert torch.allclose(mine, first)
        assert torch.allclose(second, torch.zeros(6) if x.grad is None else x.grad)
        assert operation in ("broadcast", "scatter") or bool(second.any())


def test_scatter_needs_a_tensor_for_each_rank():
    def run(world):
        with pytest.raises(ValueError, match="one for each of the 3 ranks, on every rank, not 2"):
            functional.scatter([torch.ones(2)] * 2, 1, world.group)
        x = functional.all_reduce(torch.ones(1), group=world.group)
        assert x.item() == SIZE

    ranks.in_threads(SIZE, run)


# ---- Sampling ----

NUMBERS = list(range(10))


def parts(kind, **arguments):
    return [list(kind(NUMBERS, SIZE, rank, **arguments)) for rank in range(SIZE)]


@pytest.mark.parametrize(
    "arguments", [{}, {"shuffle": False}, {"seed": 3}, {"drop_last": True, "shuffle": False}]
)
def test_parts_are_those_of_torchs_sampler(arguments):
    assert parts(DistributedSampler, **arguments) == parts(
        torch.utils.data.DistributedSampler, **arguments
    )


def test_a_sampler_asks_the_job_of_syncline(monkeypatch):
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    sampler = DistributedSampler(NUMBERS, shuffle=False)
    assert (sampler.num_replicas, sampler.rank, list(sampler)) == (1, 0, NUMBERS)
    monkeypatch.setattr(process_groups, "get_world_size", lambda: 4)
    monkeypatch.setattr(process_groups, "get_rank", lambda: 3)
    sampler = DistributedSampler(NUMBERS)
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (4, 3, 3)
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    loader = torch.utils.data.DataLoader(NUMBERS, sampler=sampler)
    first = [int(x) for x in loader]
    sampler.set_epoch(1)
    assert [int(x) for x in loader] != first
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(NUMBERS)


def test_a_tensor_of_the_safe_codec_keeps_its_requires_grad():
    leaf_here, plain, result = decode(
        encode([torch.ones(2, requires_grad=True), torch.ones(2), leaf(0, 2) * 2])
    )
    assert leaf_here.requires_grad and leaf_here.is_leaf and not plain.requires_grad
    assert result.requires_grad and result.tolist() == [2, 4]
    module = torch.nn.BatchNorm1d(2)
    assert decode(encode(module.state_dict()))._metadata == module.state_dict()._metadata
    with pytest.raises(TypeError, match="Parameter cannot be carried"):
        encode(torch.nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize(
    "content",
    [
        '["quint8",[1],1]',
        '["quint8",[0],0]',
        '["float32",[0,4611686018427387904,4],0]',
        '["float32",[0,1180591620717411303424],0]',
        '["uint8",[1],1,true]',
        '["uint8",[1],1,0]',
        '["uint8",[1],1,true,true]',
    ],
)
def test_malformed_tensors_are_value_errors(content):
    text = b'{"tensor":%s}' % content.encode()
    data = b"S" + len(text).to_bytes(8, "little") + text + b"\1" * ("[1]" in content)
    with pytest.raises(ValueError, match="malformed"):
        decode(data)


def test_a_size_is_an_object_of_the_safe_codec():
    returned = decode(encode({"shape": torch.zeros(2, 0, 3).shape}))
    assert type(returned["shape"]) is torch.Size and returned == {"shape": (2, 0, 3)}
