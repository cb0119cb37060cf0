"""Random programs of calls of torch.distributed, over gloo and over the backend: the same outcomes.

A program is made from its seed, so that all ranks have the same one. Each call's outcome is what it
returns and has written to, or the type of its exception. Where gloo succeeds, the backend must have
the same values, types included; where gloo refuses arguments, an exception of the same class; what
gloo cannot do it may do. `DIFFERENCES` lists what is meant to differ.

TEST_SEEDS is the number of programs; with TEST_TALK each call is printed before it is made. At some
calls that do not fit gloo ends the process, or waits: of those in `FATAL` the backend must raise.
"""

import os
import random
import time
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_ranks

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
OTHERS = [torch.bool, torch.uint16, torch.uint32, torch.float8_e4m3fn]
DTYPES = FLOATS + INTEGERS + COMPLEX + OTHERS
SHAPES = [(), (0,), (1,), (7,), (2, 3), (0, 5), (3, 1), (2, 3, 4, 5), (20_000,)]
LAYOUTS = ["plain", "plain", "transposed", "strided", "offset", "channels_last", "leaf", "conj"]
OPERATIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]

NO_TENSORS = "There were no tensor arguments"  # Of the dispatcher, which the backend goes past.

# What is an error here and none of gloo, and why.
DIFFERENCES = {
    "all_reduce of meta": "the dispatcher makes nothing of it; here it is an error that says so",
    "all_to_all_single, odd": "gloo leaves elements out",
}

# Calls at which gloo ends the process, or waits for ever.
FATAL = (
    "reduce_scatter_tensor, size",
    "reduce_scatter_tensor, type",
    "all_to_all_single, negative",
    "all_to_all_single, types",
    "receive from oneself",
    "send to -1",
    "send to nobody",
    "receive from nobody",
    "send_object_list to nobody",
    "group.send to nobody",
)

# What gloo says where other ranks have refused the call.
ENDED = ("imed out", "imeout", "Connection closed by peer", "Connection reset")

# What torch's functions say of complex tensors that are lazily conjugated, whatever the backend:
# gloo got others.
OF_TORCH = "view_as_real doesn't work on unresolved conjugated tensors"

# What gloo says of what it cannot do at all, which the backend may do.
UNSUPPORTED = (
    "not support",
    "Unsupported",
    "Invalid scalar type",
    "Cannot use ReduceOp",
    "Unhandled ReduceOp",
    "only supports",
    "not implemented for",
    "a view of a leaf Variable that requires grad",
    NO_TENSORS,
    "has to be contiguous",
    "offset < this->size",  # Of a receive of no elements from any rank.
    "invalid tensor size at index 0",  # Of a list's elements side by side, in one more dimension.
    "can't be cast to the desired output type",
)


def made(layout, shape, dtype, seed):
    """A tensor whose elements depend on the seed alone, in a layout that fits the shape and type.

    Gloo takes the memory of tensors that are not contiguous for their elements: it gets others.
    """
    count = 1
    for extent in shape:
        count *= extent
    values = (torch.arange(count) * 7 + seed * 3) % 5
    plain = values.to(dtype).reshape(shape)
    if layout == "conj" and dtype.is_complex:
        plain = (plain * (1 + 1j)).conj()
    if dist.get_backend() == "gloo" and layout != "leaf":
        return plain.resolve_conj()
    if layout == "transposed" and len(shape) > 1:
        plain = plain.clone(memory_format=torch.contiguous_format).mT.contiguous().mT
    elif layout == "strided" and shape:
        plain = torch.stack([plain, plain], -1)[..., 0]
    elif layout == "offset":
        plain = torch.cat([torch.zeros(3, dtype=dtype), plain.reshape(-1)])[3:].view(shape)
    elif layout == "channels_last" and len(shape) == 4:
        plain = plain.contiguous(memory_format=torch.channels_last)
    elif layout == "leaf" and (dtype.is_floating_point or dtype.is_complex):
        plain = plain.requires_grad_()
    return plain


def described(value):
    """In a form that can be compared: types, shapes and elements."""
    if isinstance(value, torch.Tensor):
        elements = value.detach().resolve_conj()
        if elements.dtype.itemsize == 1 and elements.is_floating_point():
            elements = elements.float()
        return ("tensor", value.dtype, tuple(value.shape), elements.clone())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [described(item) for item in value])
    if isinstance(value, dist.Work):
        return ("Work",)
    return (type(value).__name__, value)


def is_equal(ours, theirs):
    if isinstance(ours, torch.Tensor):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        loose = ours.dtype in (torch.float16, torch.bfloat16)
        return torch.allclose(
            ours.to(torch.complex128),
            theirs.to(torch.complex128),
            rtol=2e-2 if loose else 1e-6,
            atol=1e-6,
            equal_nan=True,
        )
    if isinstance(ours, (list, tuple)):
        return (
            type(ours) is type(theirs)
            and len(ours) == len(theirs)
            and all(map(is_equal, ours, theirs))
        )
    return ours == theirs


class Step:
    """One call. `run` makes it, and returns what is compared."""

    def __init__(self, text, run):
        self.text, self.run = text, run

    def outcome(self):
        try:
            return described(self.run())
        except Exception as error:
            return error


def finished(work, *outputs):
    """What a Work, or the Future of a coalesced call, tells, and what it has written."""
    told = [isinstance(work, dist.Work), isinstance(work, torch.futures.Future)]
    waited = work.wait()
    return [told, waited if told[0] else None, *outputs]


def called(function, *arguments, outputs=(), in_background=False, **options):
    """Calls it, in the background or not."""
    if in_background:
        return finished(function(*arguments, async_op=True, **options), *outputs)
    return [function(*arguments, **options), *outputs]


class Program:
    """Steps that all ranks of a job make alike."""

    def __init__(self, seed, rank, size):
        self.random = random.Random(seed)
        self.rank, self.size = rank, size
        self.groups = []
        self.is_ready = False

    def join_groups(self):
        self.groups = [None, dist.new_group(list(range(self.size))[::-1])]
        self.groups.append(dist.new_group([0, self.size - 1]))
        self.is_ready = True

    def steps(self, count):
        kinds = [name for name in dir(self) if name.startswith("of_")]
        for number in range(count):
            kind = self.random.choice(kinds)
            self.number = number
            # Each has numbers of its own, whatever the others take.
            self.r = random.Random(self.random.random())
            yield getattr(self, kind)()

    # ---- what steps are made of ----

    def dtype(self):
        return self.r.choice(self.r.choice([FLOATS, INTEGERS, DTYPES]))

    def group(self):
        """A group, its ranks, and whether this rank is one of them."""
        index = self.r.randrange(3)
        ranks = list(range(self.size)) if index < 2 else sorted({0, self.size - 1})
        return index, ranks, self.rank in ranks

    def place(self, ranks):
        """The rank within the group: those of reversed groups are numbered as in the world."""
        return ranks.index(self.rank)

    def new(self, shape, dtype, seed, layout=None):
        return made(layout or self.r.choice(LAYOUTS), shape, dtype, seed)

    def collective(self, name, run, *about):
        """A step of a group's members."""
        index, ranks, is_member = self.group()
        text = f"{name} of group {index}, {', '.join(map(str, about))}"
        background = self.r.random() < 0.4
        if not is_member:
            return Step(text, lambda: None)
        return Step(
            text + (" in background" if background else ""),
            lambda: run(self.groups[index], ranks, {"in_background": background}),
        )

    def some(self):
        """A type, shape, layout and a seed of values."""
        return (
            self.dtype(),
            self.r.choice(SHAPES),
            self.r.choice(LAYOUTS),
            self.r.randrange(100),
        )

    # ---- collectives ----

    def of_all_reduce(self):
        dtype, shape, layout, seed = self.some()
        op = self.r.choice(OPERATIONS[: 2 if self.r.random() < 0.5 else 8])

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            given = getattr(dist.ReduceOp, op)
            return called(dist.all_reduce, tensor, given, group, outputs=[tensor], **options)

        return self.collective("all_reduce", run, dtype, shape, layout, op)

    def of_premul_sum(self):
        dtype, shape, layout, seed = self.some()

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            given = dist._make_nccl_premul_sum(0.5)
            return called(dist.all_reduce, tensor, given, group, outputs=[tensor], **options)

        return self.collective("all_reduce premul_sum", run, dtype, shape, layout)

    def of_all_reduce_coalesced(self):
        dtype, _, _, seed = self.some()
        layouts = [self.r.choice(LAYOUTS) for _ in range(self.r.randrange(1, 4))]
        shapes = [self.r.choice(SHAPES) for _ in layouts]

        def run(group, ranks, options):
            tensors = [
                made(layout, shape, dtype, seed + self.rank)
                for layout, shape in zip(layouts, shapes, strict=True)
            ]
            return called(
                dist.all_reduce_coalesced, tensors, group=group, outputs=tensors, **options
            )

        return self.collective("all_reduce_coalesced", run, dtype, shapes, layouts)

    def of_broadcast(self):
        dtype, shape, layout, seed = self.some()
        root = self.r.choice([0, self.size - 1])
        as_group_rank = self.r.random() < 0.2

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            how = {"group_src": ranks.index(root)} if as_group_rank else {"src": root}
            return called(dist.broadcast, tensor, group=group, outputs=[tensor], **how, **options)

        return self.collective("broadcast", run, dtype, shape, layout, root)

    def of_reduce(self):
        dtype, shape, layout, seed = self.some()
        root = self.r.choice([0, self.size - 1])
        op = self.r.choice(OPERATIONS)

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            outputs = [tensor] if self.rank == root else []  # Gloo writes to those of others.
            given = getattr(dist.ReduceOp, op)
            return called(dist.reduce, tensor, root, given, group, outputs=outputs, **options)

        return self.collective("reduce", run, dtype, shape, layout, op, root)

    def of_all_gather(self):
        dtype, shape, layout, seed = self.some()
        of_outputs = self.r.choice(LAYOUTS[:6])

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            outputs = [made(of_outputs, shape, dtype, 50) for _ in ranks]
            return called(
                dist.all_gather, outputs, tensor, group, outputs=[outputs, tensor], **options
            )

        return self.collective("all_gather", run, dtype, shape, layout, of_outputs)

    def of_all_gather_into_tensor(self):
        dtype, shape, layout, seed = self.some()
        form = self.r.choice(["stacked", "joined"])
        of_output = self.r.choice(["plain", "plain", "transposed", "strided"])

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            whole = (len(ranks), *shape)
            if form == "joined" and shape:
                whole = (len(ranks) * shape[0], *shape[1:])
            output = made(of_output, whole, dtype, 50)
            function = dist.all_gather_into_tensor
            return called(function, output, tensor, group, outputs=[output], **options)

        return self.collective("all_gather_into_tensor", run, dtype, shape, layout, form, of_output)

    def of_all_gather_coalesced(self):
        dtype, _, _, seed = self.some()
        shapes = [self.r.choice(SHAPES) for _ in range(self.r.randrange(1, 4))]

        def run(group, ranks, options):
            tensors = [made("plain", shape, dtype, seed + self.rank) for shape in shapes]
            outputs = [[torch.zeros_like(tensor) for tensor in tensors] for _ in ranks]
            return called(
                dist.all_gather_coalesced, outputs, tensors, group, outputs=outputs, **options
            )

        return self.collective("all_gather_coalesced", run, dtype, shapes)

    def of_gather(self):
        dtype, shape, layout, seed = self.some()
        root = self.r.choice([0, self.size - 1])
        of_outputs = self.r.choice(LAYOUTS[:6])

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, seed + self.rank)
            outputs = [made(of_outputs, shape, dtype, 50) for _ in ranks]
            given = outputs if self.rank == root else None
            return called(
                dist.gather, tensor, given, root, group, outputs=[outputs, tensor], **options
            )

        return self.collective("gather", run, dtype, shape, layout, of_outputs, root)

    def of_scatter(self):
        dtype, shape, layout, seed = self.some()
        root = self.r.choice([0, self.size - 1])
        of_inputs = self.r.choice(LAYOUTS)

        def run(group, ranks, options):
            tensor = made(layout, shape, dtype, 50)
            inputs = [made(of_inputs, shape, dtype, seed + rank) for rank in ranks]
            given = inputs if self.rank == root else None
            return called(dist.scatter, tensor, given, root, group, outputs=[tensor], **options)

        return self.collective("scatter", run, dtype, shape, layout, of_inputs, root)

    def of_reduce_scatter(self):
        dtype, shape, layout, seed = self.some()
        of_output = self.r.choice(LAYOUTS[:6])
        op = self.r.choice(OPERATIONS)

        def run(group, ranks, options):
            inputs = [made(layout, shape, dtype, seed + self.rank + rank) for rank in ranks]
            output = made(of_output, shape, dtype, 50)
            given = getattr(dist.ReduceOp, op)
            return called(
                dist.reduce_scatter, output, inputs, given, group, outputs=[output], **options
            )

        return self.collective("reduce_scatter", run, dtype, shape, layout, of_output, op)

    def of_reduce_scatter_tensor(self):
        dtype, shape, layout, seed = self.some()
        shape = shape or (1,)  # Gloo ends the process at those without dimensions.
        of_output = self.r.choice(["plain", "plain", "transposed", "strided"])

        def run(group, ranks, options):
            whole = (len(ranks) * shape[0], *shape[1:])
            tensor = made(layout, whole, dtype, seed + self.rank)
            output = made(of_output, shape, dtype, 50)
            function = dist.reduce_scatter_tensor
            return called(function, output, tensor, group=group, outputs=[output], **options)

        return self.collective("reduce_scatter_tensor", run, dtype, shape, layout, of_output)

    def of_all_to_all(self):
        dtype, shape, layout, seed = self.some()
        of_outputs = self.r.choice(LAYOUTS[:6])

        def run(group, ranks, options):
            inputs = [made(layout, shape, dtype, seed + self.rank * 7 + rank) for rank in ranks]
            outputs = [made(of_outputs, shape, dtype, 50) for _ in ranks]
            return called(dist.all_to_all, outputs, inputs, group, outputs=[outputs], **options)

        return self.collective("all_to_all", run, dtype, shape, layout, of_outputs)

    def of_all_to_all_single(self):
        dtype, _, layout, seed = self.some()
        width = self.r.randrange(3)
        table = [[self.r.randrange(4) for _ in range(self.size)] for _ in range(self.size)]
        is_even = self.r.random() < 0.4
        of_output = self.r.choice(["plain", "plain", "transposed", "strided"])

        def run(group, ranks, options):
            me, tail = self.rank, ((width,) if width else ())
            if is_even:
                sent = received = None
                rows = written = 3 * len(ranks)
            else:
                sent, received = [table[me][r] for r in ranks], [table[r][me] for r in ranks]
                rows, written = sum(sent), sum(received)
            tensor = made(layout, (rows, *tail), dtype, seed + me)
            output = made(of_output, (written, *tail), dtype, 50)
            return called(
                dist.all_to_all_single,
                *(output, tensor, received, sent, group),
                outputs=[output],
                **options,
            )

        return self.collective(
            "all_to_all_single", run, dtype, width, layout, of_output, table, is_even
        )

    def of_barrier(self):
        return self.collective(
            "barrier", lambda group, ranks, options: called(dist.barrier, group, **options)
        )

    def of_monitored_barrier(self):
        def run(group, ranks, options):
            return dist.monitored_barrier(group, timedelta(seconds=30), bool(seed % 2))

        seed = self.r.randrange(2)
        return self.collective("monitored_barrier", run, seed)

    def of_functional(self):
        dtype, shape, layout, seed = self.some()
        name = self.r.choice(["all_reduce", "all_gather", "broadcast", "all_to_all", "scatter"])

        def run(group, ranks, options):
            over = group if group is not None else dist.group.WORLD
            whole = (len(ranks) * 2, *shape[1:])
            tensor = made(layout, whole, dtype, seed + self.rank).detach()
            if name == "all_reduce":
                result = functional.all_reduce(tensor, "sum", over)
            elif name == "all_gather":
                result = functional.all_gather_tensor(tensor, 0, over)
            elif name == "broadcast":
                result = functional.broadcast(tensor, 0, over)
            elif name == "all_to_all":
                result = functional.all_to_all_single(tensor, None, None, over)
            else:
                result = functional.reduce_scatter_tensor(tensor, "sum", 0, over)
            return functional.wait_tensor(result)

        return self.collective("functional " + name, run, dtype, shape, layout)

    # ---- methods of groups ----

    def of_methods(self):
        dtype, shape, layout, seed = self.some()
        name = self.r.choice(["allreduce", "broadcast", "allgather", "barrier", "reduce", "gather"])
        ends = self.r.choice(["wait", "result", "future", "then"])

        def run(group, ranks, options):
            over = group if group is not None else dist.group.WORLD
            tensor = made(layout, shape, dtype, seed + self.rank)
            outputs = [made("plain", shape, dtype, 50) for _ in ranks]
            opts = dist.AllreduceOptions()
            if name == "allreduce":
                opts.asyncOp = True
                work = over.allreduce([tensor], opts)
            elif name == "broadcast":
                work = over.broadcast(tensor, 0)
            elif name == "allgather":
                work = over.allgather([outputs], [tensor])
            elif name == "reduce":
                work = over.reduce(tensor, 0)
                work.wait()
                return [] if self.place(ranks) else [tensor]
            elif name == "gather":
                root = self.place(ranks) == 0
                work = over.gather([outputs] if root else [], [tensor], dist.GatherOptions())
            else:
                work = over.barrier()
            if ends == "wait":
                return finished(work, tensor, outputs)
            if ends == "result":
                work.wait()
                return [work.result(), tensor]
            if ends == "future":
                return [work.get_future().wait(), tensor]
            return [work.get_future().then(lambda future: type(future.value()).__name__).wait()]

        return self.collective("group." + name, run, dtype, shape, layout, ends)

    def of_properties(self):
        def run(group, ranks, options):
            over = group if group is not None else dist.group.WORLD
            return [
                dist.get_rank(group),
                dist.get_world_size(group),
                dist.get_process_group_ranks(group),
                [dist.get_global_rank(over, place) for place in range(len(ranks))],
                [dist.get_group_rank(over, rank) for rank in ranks],
                over.rank(),
                over.size(),
                type(over.group_name).__name__,
                over.group_desc,
                sorted(map(str, over._device_types)),
                over.bound_device_id,
                dist.is_initialized(),
                dist.is_backend_available("gloo"),
                type(dist.get_pg_count()).__name__,
                type(over.get_group_store()).__name__,
                over._get_backend(torch.device("cpu")).rank(),
                over._get_backend(torch.device("cpu")).size(),
            ]

        return self.collective("properties", run)

    # ---- point to point ----

    def pair(self):
        """A call of two ranks."""
        return self.r.sample(range(self.size), 2)

    def of_send(self):
        dtype, shape, layout, seed = self.some()
        of_output = self.r.choice(LAYOUTS[:6])
        (source, target), tag = self.pair(), self.r.choice([0, 0, 3, 2**20])
        background, any_source = self.r.random() < 0.5, self.r.random() < 0.2

        def run():
            if self.rank == source:
                tensor = made(layout, shape, dtype, seed)
                if background:
                    work = dist.isend(tensor, target, tag=tag)
                    return [isinstance(work, dist.Work), work.wait()]
                return dist.send(tensor, target, tag=tag)
            if self.rank != target:
                return None
            tensor = made(of_output, shape, dtype, 50)
            given = None if any_source else source
            if background:
                work = dist.irecv(tensor, given, tag=tag)
                return [isinstance(work, dist.Work), work.wait(), tensor]
            return [dist.recv(tensor, given, tag=tag), tensor]

        about = [dtype, shape, layout, of_output, source, target, tag, background, any_source]
        return Step(f"send {about}", run)

    def of_batch(self):
        dtype, shape, layout, seed = self.some()

        def run():
            sent = made(layout, shape, dtype, seed + self.rank)
            received = made("plain", shape, dtype, 50)
            operations = [
                dist.P2POp(dist.isend, sent, (self.rank + 1) % self.size),
                dist.P2POp(dist.irecv, received, (self.rank - 1) % self.size),
            ]
            works = dist.batch_isend_irecv(operations)
            return [type(works).__name__, [work.wait() for work in works], received]

        return Step(f"batch {dtype} {shape} {layout}", run)

    def of_coalescing(self):
        dtype, shape, _, seed = self.some()
        in_background = self.r.random() < 0.5

        def run():
            tensors = [made("plain", shape, dtype, seed + self.rank + i) for i in range(3)]
            with dist._coalescing_manager(async_ops=in_background) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if in_background:
                manager.wait()
            return tensors

        return Step(f"coalescing {dtype} {shape} {in_background}", run)

    # ---- objects ----

    def of_objects(self):
        root = self.r.choice([0, self.size - 1])
        pool = [None, 1, "text", b"bytes", (1, [2]), {"a": {1, 2}}, 2.5, {}, [], frozenset([3])]
        pool += [torch.arange(3), torch.float16, torch.Size([1, 2]), timedelta(seconds=1), range(3)]
        values = [self.r.choice(pool) for _ in range(2 * self.size)]
        name = self.r.choice(["all_gather", "broadcast", "gather", "scatter", "send"])

        def run(group, ranks, options):
            mine = values[self.rank]
            found = [None] * len(ranks)
            if name == "all_gather":
                return [dist.all_gather_object(found, mine, group), found]
            if name == "broadcast":
                items = list(values) if self.rank == root else [None] * len(values)
                return [dist.broadcast_object_list(items, root, group), items]
            if name == "gather":
                given = found if self.rank == root else None
                return [dist.gather_object(mine, given, root, group), found]
            if name == "scatter":
                items = values[: len(ranks)] if self.rank == root else None
                return [dist.scatter_object_list(output := [0], items, root, group), output]
            other = next(rank for rank in ranks if rank != root)
            if self.rank == root:
                return dist.send_object_list(list(values), other, group)
            if self.rank == other:
                return [dist.recv_object_list(got := [None] * len(values), root, group), got]
            return None

        return self.collective(f"{name}_objects", run, root, values)

    # ---- arguments that do not fit, which all ranks have alike ----

    def refused(self):
        """Chosen by the kind of each."""
        x, size = torch.ones(4), self.size
        other = (self.rank + 1) % size
        return {
            "all_reduce of a list": lambda: dist.all_reduce([x]),
            "all_reduce of a number": lambda: dist.all_reduce(3.0),
            "all_reduce of None": lambda: dist.all_reduce(None),
            "all_reduce with a text as op": lambda: dist.all_reduce(x, "sum"),
            "all_reduce with None as op": lambda: dist.all_reduce(x, None),
            "all_reduce, bits of floats": lambda: dist.all_reduce(x, dist.ReduceOp.BAND),
            "all_reduce of an array": lambda: dist.all_reduce(x.numpy()),
            "all_reduce of a sparse bool": lambda: dist.all_reduce(x.bool().to_sparse()),
            "all_reduce of meta": lambda: dist.all_reduce(x.to("meta")),
            "all_reduce_coalesced of nothing": lambda: dist.all_reduce_coalesced([]),
            "all_reduce_coalesced, two types": lambda: dist.all_reduce_coalesced([x, x.int()]),
            "all_reduce_coalesced of a tensor": lambda: dist.all_reduce_coalesced(x),
            "broadcast from nobody": lambda: dist.broadcast(x, size),
            "broadcast from -1": lambda: dist.broadcast(x, -1),
            "broadcast from a text": lambda: dist.broadcast(x, "0"),
            "broadcast from a float": lambda: dist.broadcast(x, 0.0),
            "broadcast from None": lambda: dist.broadcast(x, None),
            "broadcast from both": lambda: dist.broadcast(x, 0, group_src=0),
            "reduce to nobody": lambda: dist.reduce(x, size),
            "reduce to -2": lambda: dist.reduce(x, -2),
            "gather to nobody": lambda: dist.gather(x, None, size),
            "scatter from nobody": lambda: dist.scatter(x, None, size),
            "all_gather into few": lambda: dist.all_gather([x.clone()] * (size - 1), x),
            "all_gather into many": lambda: dist.all_gather([x.clone()] * (size + 1), x),
            "all_gather into none": lambda: dist.all_gather([], x),
            "all_gather into None": lambda: dist.all_gather(None, x),
            "all_gather, a tensor": lambda: dist.all_gather(torch.ones(size, 4), x),
            "all_gather, types": lambda: dist.all_gather([x.int() for _ in range(size)], x),
            "all_gather, numbers": lambda: dist.all_gather([1] * size, x),
            "all_gather_into_tensor, size": lambda: dist.all_gather_into_tensor(torch.ones(5), x),
            "all_gather_into_tensor, type": lambda: dist.all_gather_into_tensor(
                torch.ones(4 * size).int(), x
            ),
            "all_gather_into_tensor, list": lambda: dist.all_gather_into_tensor([x] * size, x),
            "reduce_scatter of few": lambda: dist.reduce_scatter(x, [x.clone()] * (size - 1)),
            "reduce_scatter of two types": lambda: dist.reduce_scatter(x, [x.int()] * size),
            "reduce_scatter_tensor, size": lambda: dist.reduce_scatter_tensor(x, torch.ones(5)),
            "reduce_scatter_tensor, type": lambda: dist.reduce_scatter_tensor(
                x, torch.ones(4 * size).int()
            ),
            "all_to_all of few": lambda: dist.all_to_all([x.clone()], [x]),
            "all_to_all of tensors": lambda: dist.all_to_all(torch.ones(size), torch.ones(size)),
            "all_to_all_single, splits": lambda: dist.all_to_all_single(
                torch.ones(4), torch.ones(4), [1] * size, [1] * size
            ),
            "all_to_all_single, few splits": lambda: dist.all_to_all_single(x.clone(), x, [4], [4]),
            "all_to_all_single, negative": lambda: dist.all_to_all_single(
                x.clone(), x, [5, -1] + [0] * (size - 2), [5, -1] + [0] * (size - 2)
            ),
            "all_to_all_single, odd": lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5)),
            "all_to_all_single, types": lambda: dist.all_to_all_single(
                torch.ones(2 * size), torch.ones(2 * size).int()
            ),
            "send to oneself": lambda: dist.send(x, self.rank),
            "receive from oneself": lambda: dist.recv(x, self.rank),
            "send to nobody": lambda: dist.send(x, size),
            "send to -1": lambda: dist.send(x, -1),
            "send to None": lambda: dist.send(x, None),
            "send a list": lambda: dist.send([x], other),
            "receive from nobody": lambda: dist.recv(x, size),
            "receive a list": lambda: dist.recv([x], other),
            "send with a text as tag": lambda: dist.send(x, other, tag="1"),
            "batch of nothing": lambda: dist.batch_isend_irecv([]),
            "batch of None": lambda: dist.batch_isend_irecv(None),
            "batch of tensors": lambda: dist.batch_isend_irecv([x]),
            "P2POp of send": lambda: dist.P2POp(dist.send, x, other),
            "P2POp of a list": lambda: dist.P2POp(dist.isend, [x], other),
            "P2POp with nobody": lambda: type(dist.P2POp(dist.isend, x, size)),
            "P2POp with oneself": lambda: type(dist.P2POp(dist.isend, x, self.rank)),
            "new_group with nobody": lambda: dist.new_group([size]),
            "new_group of one twice": lambda: dist.new_group([0, 0]),
            "new_group with -1": lambda: dist.new_group([-1]),
            "new_group of a number": lambda: dist.new_group(3),
            "new_group, a timeout of 3": lambda: dist.new_group(timeout=3),
            "new_group of many": lambda: dist.new_group(list(range(size + 1))),
            "new_subgroups of none": lambda: dist.new_subgroups(0),
            "new_subgroups of many": lambda: dist.new_subgroups(size + 1),
            "new_subgroups of -1": lambda: dist.new_subgroups(-1),
            "by enumeration, none": lambda: dist.new_subgroups_by_enumeration([]),
            "by enumeration, None": lambda: dist.new_subgroups_by_enumeration(None),
            "by enumeration, twice": lambda: dist.new_subgroups_by_enumeration([[0], [0]]),
            "initialize twice": lambda: dist.init_process_group("gloo"),
            "destroy a text": lambda: dist.destroy_process_group("x"),
            "rank in a text": lambda: dist.get_rank("x"),
            "size of a number": lambda: dist.get_world_size(3),
            "rank of nobody": lambda: dist.get_group_rank(dist.group.WORLD, size),
            "global rank of nobody": lambda: dist.get_global_rank(self.groups[1], size),
            "backend of a text": lambda: dist.get_backend("x"),
            "barrier of a number": lambda: dist.barrier(3),
            "barrier, device 0": lambda: dist.barrier(device_ids=0),
            "barrier, a text": lambda: dist.barrier(device_ids="0"),
            "all_gather_object into few": lambda: dist.all_gather_object([None] * (size - 1), 1),
            "all_gather_object into None": lambda: dist.all_gather_object(None, 1),
            "broadcast_object_list, nobody": lambda: dist.broadcast_object_list([1], size),
            "broadcast_object_list of None": lambda: dist.broadcast_object_list(None, 0),
            "scatter_object_list, none": lambda: dist.scatter_object_list([], [1] * size, 0),
            "scatter_object_list, None": lambda: dist.scatter_object_list(None, [1] * size, 0),
            "scatter_object_list, int": lambda: dist.scatter_object_list(1, [1] * size, 0),
            "gather_object to nobody": lambda: dist.gather_object(1, None, size),
            "send_object_list to oneself": lambda: dist.send_object_list([1], self.rank),
            "send_object_list to nobody": lambda: dist.send_object_list([1], size),
            "monitored_barrier, text": lambda: dist.monitored_barrier(timeout="1"),
            "DDP of nothing": lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.ReLU()),
            "group.allreduce of nothing": lambda: dist.group.WORLD.allreduce([]),
            "group.allreduce of a number": lambda: dist.group.WORLD.allreduce(1),
            "group.broadcast from nobody": lambda: dist.group.WORLD.broadcast(x, size).wait(),
            "group.allgather, none": lambda: dist.group.WORLD.allgather([], []),
            "group.allgather, few": lambda: dist.group.WORLD.allgather([[x]], [x, x]),
            "group.send to nobody": lambda: dist.group.WORLD.send([x], size, 0),
            "group.send, negative tag": lambda: dist.group.WORLD.send([x], other, -1),
            "group.send, nothing": lambda: dist.group.WORLD.send([], other, 0),
            "group.send, two": lambda: dist.group.WORLD.send([x, x], other, 0),
        }


# ---- running and comparing them ----


class Job:
    """Makes the steps of a program over one backend, all ranks at the same time."""

    def __init__(self, backend, seed):
        self.backend, self.seed, self.joined = backend, seed, 0
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.program = Program(seed, self.rank, self.size)
        port = int(os.environ["TEST_PORT"])
        store = dist.TCPStore("127.0.0.1", port, timeout=torch_ranks.TIMEOUT)
        self.store = dist.PrefixStore(f"outcomes of {seed} over {backend}", store)
        self.join()

    def join(self):
        self.joined += 1
        try:
            torch_ranks.join(self.backend, timeout=timedelta(seconds=4))
            self.program.join_groups()
        except RuntimeError as error:  # Gloo may fail to connect where it has just disconnected.
            if self.backend != "gloo" or self.joined > 100:
                raise
            print("again:", error, flush=True)
        if any(self.everyones(f"join {self.joined}", "" if self.program.is_ready else "failed")):
            self.leave()
            self.join()

    def leave(self):
        self.program.is_ready = False
        if dist.is_initialized():
            dist.destroy_process_group()

    def everyones(self, what, mine):
        """What each rank says."""
        self.store.set(f"{what} {self.rank}", mine)
        return [self.store.get(f"{what} {rank}").decode() for rank in range(self.size)]

    def outcomes(self, count):
        if self.seed == "refused":
            steps = [Step(name, run) for name, run in self.program.refused().items()]
        else:
            steps = self.program.steps(count)
        found = []
        for number, step in enumerate(steps):
            if self.backend == "gloo" and step.text in FATAL:
                found.append((step.text, FATAL))
                continue
            if "TEST_TALK" in os.environ:
                print(self.backend, step.text, flush=True)
            begin = time.monotonic()
            outcome = step.outcome()
            if time.monotonic() - begin > 1:
                print("slow:", self.backend, step.text, repr(outcome)[:200], flush=True)
            found.append((step.text, outcome))
            # Where all refuse a call, groups are as they were.
            said = self.everyones(f"step {number}", verdict(outcome))
            if "ended" in said or ("refused" in said and "" in said):
                self.leave()
                self.join()
        torch_ranks.leave()
        return found


def verdict(outcome):
    """Whether a rank has refused a call itself, or found that others had."""
    if not isinstance(outcome, Exception):
        return ""
    if isinstance(outcome, (TypeError, ValueError)):  # Whose texts may speak of timeouts.
        return "refused"
    return "ended" if any(words in str(outcome) for words in ENDED) else "refused"


def difference(ours, theirs):
    """What differs, or None."""
    if theirs is FATAL:
        return None if verdict(ours) == "refused" else f"gloo ends here, we return {ours!r}"
    if isinstance(theirs, Exception) and verdict(theirs) == "ended":
        return None
    if isinstance(theirs, Exception):
        if not isinstance(ours, Exception):
            is_more = any(words in str(theirs) for words in UNSUPPORTED)
            return None if is_more else f"gloo says {theirs!r:.300}, we return {ours}"
        bases = [base for base in type(theirs).__mro__ if base.__module__ in ("builtins", "torch")]
        expected = RuntimeError if NO_TENSORS in str(theirs) else bases[0]
        if not isinstance(ours, expected):
            return f"gloo says {theirs!r:.300}, we say {ours!r}"
        return None
    if isinstance(ours, Exception):
        if OF_TORCH in str(ours):
            return None
        return f"gloo returns {theirs}, we say {ours!r}".replace("\n", " ")
    return (
        None
        if is_equal(ours, theirs)
        else f"gloo returns {theirs}, we return {ours}".replace("\n", " ")
    )


def compare():
    seed = os.environ["TEST_SEED"]
    results = [Job(backend, seed).outcomes(60) for backend in ("gloo", "syncline")]
    differences, compared = [], 0
    for (text, theirs), (_, ours) in zip(*results, strict=True):
        if text in DIFFERENCES:
            found = None if verdict(ours) == "refused" else f"we return {ours!r}"
        elif seed == "refused" and verdict(ours) == "ended":
            found = f"all ranks make the same call, which waits in vain: {ours!r}"
        else:
            found = difference(ours, theirs)
        compared += verdict(theirs) != "ended"
        if found:
            differences.append(f"{text}: {found}")
    assert not differences, "\n".join(["differences:", *differences])
    assert compared > len(results[0]) / 2, f"gloo ended all but {compared} calls"


@pytest.mark.parametrize("size", [2, 3])
def test_arguments_that_do_not_fit_are_refused_as_by_gloo(size):
    torch_ranks.in_processes(size, __file__, "compare", TEST_SEED="refused")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TEST_SEEDS", "1"))))
def test_a_random_program_has_the_outcomes_of_gloo(seed, size):
    torch_ranks.in_processes(size, __file__, "compare", TEST_SEED=str(seed))


if __name__ == "__main__":
    torch_ranks.main(globals())
