"""A character-level transformer in PyTorch: accumulation, checkpoints, elastic restarts.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 --max-restarts=3 \
        examples/char_transformer.py --checkpoint /tmp/transformer --fail-at 50:1

Learns half a megabyte of English from Debian's package of sayings, and writes some of its own. The
batch of a step is cut into micro-batches; gradients travel with the last of them only (no_sync).
Every few steps rank 0 writes a checkpoint; each round of the job goes on from the latest that any
of its ranks can read, with however many ranks there are then: neither their number nor that of the
micro-batches changes what is computed, except for rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import syncline as dist
import torch
from syncline import elastic, preemption
from syncline.torch import DistributedDataParallel
from torch import nn
from torch.nn import functional

TEXTS = ("art", "literature", "people", "science", "wisdom")
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # Anything else is read as a space.


def find_data() -> pathlib.Path:
    """The folder of the texts among the files that Bazel hands to //launch:run."""
    folder = pathlib.Path(os.environ.get("SYNCLINE_RUNFILES", ".")) / "fortunes"
    if not (folder / TEXTS[0]).exists():
        sys.exit("the texts were not found: start with //launch:run, or pass --data FOLDER")
    return folder


def load(folder: pathlib.Path) -> torch.Tensor:
    """The texts one after another, as the places of their characters in ALPHABET: int64 [n]."""
    text = "".join((folder / name).read_text() for name in TEXTS)
    places = {character: i for i, character in enumerate(ALPHABET)}
    return torch.tensor([places.get(character, places[" "]) for character in text])


class Transformer(nn.Module):
    """A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, in small."""

    def __init__(self, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0, activation="gelu", batch_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of characters int64 [batch, length], the logits of each next one."""
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.characters(x) + self.positions[:length]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))

    @torch.no_grad()
    def write(self, length: int) -> str:
        """Some text of its own."""
        generator = torch.Generator().manual_seed(0)
        written = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(length):
            logits = self(written[:, -self.context :])[0, -1]
            following = torch.multinomial((logits / 0.8).softmax(0), 1, generator=generator)
            written = torch.cat([written, following[None]], dim=1)
        return "".join(ALPHABET[i] for i in written[0].tolist())


class Training:
    """A model, its optimizer, and how many steps they have made."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.step = 0
        self.options = options
        self.text = load(options.data or find_data())
        self.module = Transformer(options.width, options.depth, options.heads, options.context)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=options.learning_rate)
        self._path = options.checkpoint and options.checkpoint / "checkpoint.pt"

    def save(self) -> None:
        """Replaces the checkpoint in one step: who is killed meanwhile leaves the old one."""
        if not self._path:
            return
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            torch.save(self._state(), fresh)
            fresh.replace(self._path)
        finally:
            fresh.unlink(missing_ok=True)

    def restore(self) -> None:
        """All ranks go on from the latest state that any of them finds. Collective."""
        state: list[Any] = [None]
        if self._path and self._path.exists():
            state = [torch.load(self._path, weights_only=True)]
        steps: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(steps, state[0]["step"] if state[0] else 0)
        if max(steps) == 0:
            return
        dist.broadcast_object_list(state, src=steps.index(max(steps)))
        self.step = state[0]["step"]
        self.module.load_state_dict(state[0]["model"])
        self.optimizer.load_state_dict(state[0]["optimizer"])

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the step's batch: characters [n, context], and those after them."""
        options, rank, world = self.options, dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(self.step)
        last = len(self.text) - options.context - 1
        starts = torch.randint(last, (options.batch_size,), generator=generator)[rank::world]
        spans = self.text[starts[:, None] + torch.arange(options.context + 1)]
        return spans[:, :-1], spans[:, 1:]

    def make_step(self, model: DistributedDataParallel) -> float:
        """Returns the mean loss over this rank's part, in nats for a character."""
        options = self.options
        inputs, targets = self.batch()
        # DDP averages over ranks; what is wanted is the sum over the batch by its size.
        scale = dist.get_world_size() / (options.batch_size * options.context)
        total = 0.0
        parts = range(0, len(inputs), -(-len(inputs) // options.micro_batches))
        for start in parts:
            part = slice(start, start + parts.step)
            is_last = start == parts[-1]
            with contextlib.nullcontext() if is_last else model.no_sync():
                logits = model(inputs[part])
                loss = functional.cross_entropy(
                    logits.flatten(0, 1), targets[part].flatten(), reduction="sum"
                )
                (loss * scale).backward()
            total += float(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return total / targets.numel()


def train(training: Training) -> list[float] | None:
    """Up to --steps. This rank's loss in each step, or None if told to stop before."""
    options, rank = training.options, dist.get_rank()
    model = DistributedDataParallel(training.module)
    losses = []
    began = time.monotonic()
    while training.step < options.steps:
        step = training.step
        if preemption.reached(step):
            return None
        if options.fail_at == (step, rank) and elastic.round() == 0:
            raise RuntimeError(f"rank {rank} fails at step {step}, as --fail-at says")
        losses.append(training.make_step(model))
        elastic.heartbeat()
        if rank == 0 and training.step % options.report_every == 0:
            speed = len(losses) / (time.monotonic() - began)
            print(f"step {training.step}: loss {losses[-1]:.3f}, {speed:.1f} steps/s", flush=True)
        if rank == 0 and training.step % options.checkpoint_every == 0:
            training.save()
    if rank == 0 and losses:
        print(model.stats(), flush=True)
    return losses


def report(training: Training, losses: list[float]) -> None:
    """Says on rank 0 what has been learned, and whether all ranks have learned the same."""
    weights = b"".join(p.detach().numpy().tobytes() for p in training.module.parameters())
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(weights).hexdigest())
    if dist.get_rank() != 0:
        return
    if len(set(digests)) != 1:
        sys.exit(f"the ranks' weights differ: {digests}")
    print(training.module.write(training.options.sample), flush=True)
    if training.options.result:
        figures = {"losses": losses, "round": elastic.round(), "steps": training.step}
        text = json.dumps({**figures, "ranks": dist.get_world_size(), "weights": digests[0]})
        training.options.result.write_text(text)


def parse_options() -> argparse.Namespace:
    def step_and_rank(text: str) -> tuple[int, int]:
        step, rank = text.split(":")
        return int(step), int(rank)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="how many, restarts not counted")
    parser.add_argument("--batch-size", type=int, default=48, help="over all processes")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a process, in each step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="characters looked back at")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="the folder; none without it")
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--report-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--sample", type=int, default=300, help="characters to write at the end")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the texts")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures as JSON")
    parser.add_argument(
        "--fail-at", type=step_and_rank, metavar="STEP:RANK", help="in the first round"
    )
    return parser.parse_args()


@elastic.record
def main() -> None:
    options = parse_options()
    if options.checkpoint:
        options.checkpoint.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    dist.init_process_group()
    preemption.install()
    training.restore()
    ranks = dist.get_world_size()
    if options.batch_size < ranks:
        sys.exit(f"--batch-size {options.batch_size} leaves some of {ranks} ranks without input")
    if dist.get_rank() == 0:
        print(f"round {elastic.round()}: {ranks} ranks, from step {training.step}", flush=True)
    losses = train(training)
    if dist.get_rank() == 0:
        training.save()
    if losses is None:
        print(f"stopped before step {training.step}, as all ranks agreed", flush=True)
    else:
        report(training, losses)
    dist.barrier()  # Rank 0 may host the store.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
