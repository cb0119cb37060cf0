"""Models, options and ways to train that are to give what torch's own module gives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import models
import torch
from syncline import _syncline
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

STEPS = 10


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.05)


@dataclass
class Run:
    """One training run: of ours, or of torch's own module."""

    module: Any  # The wrapped model.
    optimizer: Any
    data: Callable[[torch.Generator], torch.Tensor]
    rank: int
    size: int

    def batch(self, step: int, part: int = 0) -> torch.Tensor:
        """This rank's input."""
        seed = (step * 10 + part) * 100 + self.rank
        return self.data(torch.Generator().manual_seed(seed))

    def loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.module(*args, **kwargs).square().mean()


def ordinary(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.loss(run.batch(step)).backward()
        run.optimizer.step()


def zeroed_between(run: Run) -> None:
    """Gradients are kept as zeros, and cleared between forward and backward; clipped."""
    for step in range(STEPS):
        loss = run.loss(run.batch(step))
        run.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.module.parameters(), 0.5)
        run.optimizer.step()


def accumulated(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        with run.module.no_sync():
            for part in range(2):
                run.loss(run.batch(step, part)).backward()
        run.loss(run.batch(step, 2)).backward()
        run.optimizer.step()


def accumulated_branches(run: Run) -> None:
    """What the last pass does not use has gradients from the passes before it."""
    for step in range(STEPS):
        run.optimizer.zero_grad()
        with run.module.no_sync():
            run.loss(run.batch(step), branch=run.rank % 2).backward()
        run.loss(run.batch(step, 1), branch=2).backward()
        run.optimizer.step()


def never_zeroed(run: Run) -> None:
    for step in range(4):
        run.loss(run.batch(step), branch=step % 3).backward()
        run.optimizer.step()


def two_forwards(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        (run.loss(run.batch(step)) + run.loss(run.batch(step, 1))).backward()
        run.optimizer.step()


def evaluated_between(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        loss = run.loss(run.batch(step))
        run.module.eval()
        with torch.no_grad():
            run.module(run.batch(step, 1))
        run.module.train()
        loss.backward()
        run.optimizer.step()


def many_outputs(run: Run) -> None:
    for step in range(STEPS):
        run.optimizer.zero_grad()
        output = run.module(x=run.batch(step))
        (output.first + output.others["b"] * output.others["c"][0]).square().mean().backward()
        run.optimizer.step()


def branches(choose: Callable[[int, int], int]) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        for step in range(STEPS):
            run.optimizer.zero_grad()
            run.loss(run.batch(step), branch=choose(run.rank, step)).backward()
            run.optimizer.step()

    return train


def uneven(**options: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        with run.module.join(**options):
            for step in range(3 * run.rank + 2):
                run.optimizer.zero_grad()
                run.loss(run.batch(step)).backward()
                run.optimizer.step()

    return train


def not_uneven(run: Run) -> None:
    with run.module.join(enable=False):
        ordinary(run)


@dataclass
class Combination:
    """What is trained, and how; `options` are the module's, `theirs` what torch's has instead."""

    model: Callable[[], torch.nn.Module]
    data: Callable[[torch.Generator], torch.Tensor] = models.vectors
    train: Callable[[Run], None] = ordinary
    optimizer: Callable[[Any], Any] = sgd
    options: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] | None = None
    ignored: tuple[str, ...] = ()
    delayed: tuple[str, ...] = ()  # Of ours only: torch's does not wait for them on CPUs.
    hook: Callable[[], tuple[Any, Any]] | None = None
    their_hook: Callable[[], tuple[Any, Any]] | None = None
    tolerance: float = 1e-6


def power_sgd() -> tuple[Any, Any]:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    return state, powerSGD_hook.powerSGD_hook


VIEWS = {"gradient_as_bucket_view": True}
UNUSED = {"find_unused_parameters": True}
STATIC = {"static_graph": True}
TINY = {"bucket_cap_mb": 0.0005}

COMBINATIONS = {
    "mlp": Combination(models.mlp),
    "mlp_with_plain_sgd": Combination(models.mlp, optimizer=plain_sgd),
    "mlp_with_adamw_and_views": Combination(models.mlp, optimizer=adam, options=VIEWS),
    "mlp_in_tiny_buckets": Combination(models.mlp, options=TINY),
    "mlp_in_tiny_buckets_with_views": Combination(models.mlp, options={**TINY, **VIEWS}),
    "layers_in_an_unexpected_order": Combination(models.Backwards, options=TINY),
    "layers_in_an_unexpected_order_with_views": Combination(
        models.Backwards, options={**TINY, **VIEWS}
    ),
    "mlp_with_a_cap_for_each_bucket": Combination(
        models.mlp, options={"bucket_cap_mb_list": [0.0005, 0.002]}
    ),
    "mlp_with_batched_copies": Combination(models.mlp, options={"batched_grad_copy": True}),
    "cnn": Combination(models.cnn, models.images),
    "cnn_in_channels_last": Combination(models.channels_last_cnn, models.images),
    "cnn_in_channels_last_with_views": Combination(
        models.channels_last_cnn, models.images, options={**VIEWS, **TINY}
    ),
    "batch_norm": Combination(models.batch_norm, models.images),
    "batch_norm_without_broadcast": Combination(
        models.batch_norm, models.images, options={"broadcast_buffers": False}
    ),
    "batch_norm_with_forward_sync_buffers_off": Combination(
        models.batch_norm, models.images, options={"forward_sync_buffers": False}
    ),
    "evaluated_between_forward_and_backward": Combination(
        models.batch_norm, models.images, evaluated_between
    ),
    "buffers_that_are_replaced": Combination(models.WithBuffers),
    "lstm": Combination(models.lstm, models.sequences),
    "transformer": Combination(models.transformer, models.sequences, optimizer=adam),
    "dense_embedding": Combination(models.embedding, models.tokens),
    "sparse_embedding": Combination(
        partial(models.embedding, sparse=True), models.tokens, optimizer=plain_sgd
    ),
    "sparse_embedding_with_adagrad_and_views": Combination(
        partial(models.embedding, sparse=True), models.tokens, optimizer=adagrad, options=VIEWS
    ),
    "sparse_embedding_accumulated": Combination(
        partial(models.embedding, sparse=True), models.tokens, accumulated, plain_sgd
    ),
    "sparse_embedding_bag": Combination(models.embedding_bag, models.tokens, optimizer=plain_sgd),
    "tied_weights": Combination(models.Tied, models.tokens),
    "mixed_types": Combination(models.MixedTypes, tolerance=1e-2),
    "complex_parameters": Combination(models.Complex, optimizer=plain_sgd),
    "frozen_and_root_parameters": Combination(models.Scaled),
    "unused_on_all_ranks": Combination(
        models.Branches, train=branches(lambda rank, step: 0), options=UNUSED
    ),
    "unused_on_each_rank_others": Combination(
        models.Branches, train=branches(lambda rank, step: (rank + step) % 3), options=UNUSED
    ),
    "unused_with_views_in_tiny_buckets": Combination(
        models.Branches,
        train=branches(lambda rank, step: (rank + step) % 3),
        options={**UNUSED, **VIEWS, **TINY},
    ),
    "unused_and_accumulated": Combination(
        models.Branches, train=accumulated_branches, options=UNUSED
    ),
    "unused_and_never_zeroed": Combination(models.Branches, train=never_zeroed, options=UNUSED),
    "unused_and_skipped": Combination(
        models.Branches,
        train=branches(lambda rank, step: 1),
        options={**UNUSED, "skip_all_reduce_unused_params": True},
        theirs=UNUSED,
    ),
    "static_graph": Combination(models.mlp, options=STATIC),
    "static_graph_with_views": Combination(models.mlp, options={**STATIC, **VIEWS, **TINY}),
    "static_graph_with_unused": Combination(
        models.Branches, train=branches(lambda rank, step: 1), options=STATIC
    ),
    "static_graph_with_other_unused_on_each_rank": Combination(
        models.Branches, train=branches(lambda rank, step: rank % 2), options=STATIC
    ),
    # torch's own asserts if the first step is one in no_sync.
    "static_graph_accumulated": Combination(
        models.mlp, train=accumulated, options=STATIC, theirs={}
    ),
    "checkpoints": Combination(partial(models.Checkpointed, False)),
    "checkpoints_with_unused": Combination(partial(models.Checkpointed, False), options=UNUSED),
    "reentrant_checkpoints": Combination(partial(models.Checkpointed, True)),
    "reentrant_checkpoints_used_twice": Combination(
        partial(models.Checkpointed, True, 2), options=STATIC
    ),
    "accumulated": Combination(models.mlp, train=accumulated),
    "accumulated_with_views": Combination(models.mlp, train=accumulated, options=VIEWS),
    "zeroed_between_and_clipped": Combination(models.mlp, train=zeroed_between),
    "zeroed_between_and_clipped_with_views": Combination(
        models.mlp, train=zeroed_between, options=VIEWS
    ),
    "two_forwards_and_one_backward": Combination(models.mlp, train=two_forwards),
    "many_outputs_and_keywords": Combination(models.ManyOutputs, train=many_outputs),
    "many_outputs_with_unused": Combination(models.ManyOutputs, train=many_outputs, options=UNUSED),
    "uneven_inputs": Combination(models.mlp, train=uneven()),
    "uneven_inputs_divided_by_active_ranks": Combination(
        models.mlp, train=uneven(divide_by_initial_world_size=False)
    ),
    "uneven_inputs_with_buffers": Combination(
        models.batch_norm, models.images, uneven(), options=TINY
    ),
    "uneven_inputs_not_enabled": Combination(models.mlp, train=not_uneven),
    "ignored_parameters": Combination(models.mlp, ignored=("2.weight", "4.bias")),
    "delayed_parameters": Combination(models.mlp, delayed=("2.weight", "4.bias")),
    "all_parameters_delayed": Combination(
        models.mlp, delayed=tuple(f"{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias"))
    ),
    "float16_hook": Combination(
        models.mlp,
        hook=lambda: (None, _syncline.CommHook.float16_compress()),
        their_hook=lambda: (None, default_hooks.fp16_compress_hook),
        tolerance=2e-3,
    ),
    "torchs_all_reduce_hook": Combination(
        models.mlp, hook=lambda: (None, default_hooks.allreduce_hook)
    ),
    "torchs_float16_hook": Combination(
        models.mlp,
        hook=lambda: (None, default_hooks.fp16_compress_hook),
        their_hook=lambda: (None, default_hooks.fp16_compress_hook),
        tolerance=2e-3,
    ),
    "torchs_power_sgd_hook": Combination(
        models.mlp, hook=power_sgd, their_hook=power_sgd, tolerance=1e-5
    ),
}
