"""Operations on torch's CUDA tensors: over syncline, torch's NCCL backend, and torch's "syncline".

    python3 benchmarks/cuda/torch_calls.py [--ranks=2] [--max-bytes=268435456] [--seconds=0.05]

Prints tables in Markdown: the time of a call among several in a row until the device is done, and
that until it returns; calls alternate. Then what it takes to pack 1,000 gradients by torch's
foreach copy, beside a plain copy of as many bytes: sizes as those that `cuda` packs by our kernels.

With --cpu, on tensors of the host over shm and gloo, which shows that this program works.

Ranks are processes; rank r is on device r, as far as there are enough. Several ranks on one device
need NCCL 2.30 or later and NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 9
MOST_CALLS = 30  # In a row: sums of 4 ranks stay finite.
SECONDS_OF_ALL = 140
SYSTEMS = ("syncline", "torch nccl", "torch syncline")


def operations(ranks, is_cpu):
    """Each operation's name, factor of the bus bandwidth, and calls by system.

    A call takes the whole tensors `out` and `into`, and uses parts where there are.
    """
    import syncline
    import torch.distributed

    def own(name):
        return {
            "all_reduce": lambda out, into: syncline.all_reduce(out),
            "broadcast": lambda out, into: syncline.broadcast(out, 0),
            "all_gather": lambda out, into: syncline.all_gather_single(
                out, into[: out.numel() // ranks]
            ),
            "reduce_scatter": lambda out, into: syncline.reduce_scatter_single(
                out[: into.numel() // ranks], into
            ),
            "all_to_all": lambda out, into: syncline.all_to_all_single(out, into),
        }[name]

    def torch_call(name, group):
        dist = torch.distributed
        return {
            "all_reduce": lambda out, into: dist.all_reduce(out, group=group),
            "broadcast": lambda out, into: dist.broadcast(out, 0, group=group),
            "all_gather": lambda out, into: dist.all_gather_into_tensor(
                out, into[: out.numel() // ranks], group=group
            ),
            "reduce_scatter": lambda out, into: dist.reduce_scatter_tensor(
                out[: into.numel() // ranks], into, group=group
            ),
            "all_to_all": lambda out, into: dist.all_to_all_single(out, into, group=group),
        }[name]

    dist = torch.distributed
    groups = {"torch nccl": dist.new_group(backend="gloo" if is_cpu else "nccl")}
    problems = []
    try:
        import syncline.torch  # noqa: F401 - makes the backend known.

        groups["torch syncline"] = dist.new_group(backend="syncline")
    except Exception as error:  # noqa: BLE001 - the other systems are measured without it.
        problems.append("torch syncline: %s" % error)
    part = (ranks - 1) / ranks
    result = []
    for name, factor in (
        ("all_reduce", 2 * part),
        ("broadcast", 1.0),
        ("all_gather", part),
        ("reduce_scatter", part),
        ("all_to_all", part),
    ):
        calls = {"syncline": own(name)}
        for system, group in groups.items():
            calls[system] = torch_call(name, group)
        result.append((name, factor, calls))
    return result, problems


class Rank:
    """One rank's measurements; `say` prints on rank 0."""

    def __init__(self, rank, ranks, options):
        import torch

        self.torch = torch
        self.rank, self.ranks, self.options = rank, ranks, options
        if options.cpu:
            self.device = torch.device("cpu")
            return
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)

    def synchronize(self):
        """Waits for the device."""
        if not self.options.cpu:
            self.torch.cuda.synchronize()

    def say(self, *what):
        if self.rank == 0:
            print(*what, flush=True)

    def turn(self, call, out, into, pattern, calls):
        """Microseconds of a call: all of it, and until it returns. The slowest rank's."""
        import torch.distributed

        torch = self.torch
        out.copy_(pattern[: out.numel()])
        into.copy_(pattern[: into.numel()])
        self.synchronize()
        torch.distributed.barrier(group=self.host)
        begin = time.perf_counter()
        for _ in range(calls):
            call(out, into)
        returned = time.perf_counter() - begin
        self.synchronize()
        done = time.perf_counter() - begin
        times = torch.tensor([done, returned], dtype=torch.float64) * (1e6 / calls)
        torch.distributed.all_reduce(times, torch.distributed.ReduceOp.MAX, group=self.host)
        return times.tolist()

    def measure(self, name, factor, calls, count, end):
        """A row of the table, or None if the time is over; the same on all ranks."""
        import torch.distributed

        torch = self.torch
        pattern = (torch.arange(count, device=self.device) % 64).float() + self.rank
        out, into = torch.empty_like(pattern), torch.empty_like(pattern)
        slowest, reference = 0.0, None
        for system, call in calls.items():
            self.turn(call, out, into, pattern, 1)
            used = count // self.ranks if name == "reduce_scatter" else count
            if reference is None:
                reference = out[:used].clone()
            elif not torch.equal(out[:used], reference):
                raise AssertionError("%s by %s has other elements" % (name, system))
            slowest = max(slowest, self.turn(call, out, into, pattern, 1)[0])
        if name == "all_reduce":
            ranks = self.ranks
            expected = (pattern - self.rank) * ranks + ranks * (ranks - 1) // 2
            if not torch.equal(reference, expected):
                raise AssertionError("all_reduce is wrong")
        is_over = torch.tensor([float(time.monotonic() > end)])
        torch.distributed.all_reduce(is_over, torch.distributed.ReduceOp.MAX, group=self.host)
        if is_over.item():
            return None
        repeats = int(min(max(self.options.seconds * 1e6 / ROUNDS / slowest, 2), MOST_CALLS))
        times = {system: [] for system in calls}
        order = list(calls)
        for number in range(ROUNDS):
            for system in order[number % len(order) :] + order[: number % len(order)]:
                times[system].append(self.turn(calls[system], out, into, pattern, repeats))
        cells = [str(4 * count)]
        for system in SYSTEMS:
            if system not in times:
                cells += ["", "", ""]
                continue
            done, returned = (statistics.median(each) for each in zip(*times[system], strict=True))
            cells += ["%.1f" % done, "%.2f" % (4 * count * factor / done / 1000), "%.1f" % returned]
        return "| " + " | ".join(cells) + " |"

    def run(self, path):
        import syncline
        import torch.distributed

        torch = self.torch
        end = time.monotonic() + SECONDS_OF_ALL
        torch.distributed.init_process_group(
            "gloo", init_method="file://%s/torch" % path, rank=self.rank, world_size=self.ranks
        )
        self.host = torch.distributed.group.WORLD
        syncline.init_process_group(
            "shm" if self.options.cpu else "cpu:shm,cuda:nccl",
            init_method="file://%s/syncline" % path,
            rank=self.rank,
            world_size=self.ranks,
        )
        calls, problems = operations(self.ranks, self.options.cpu)
        where = "**on the host: the times say nothing of devices**"
        if not self.options.cpu:
            version = ".".join(map(str, torch.cuda.nccl.version()))
            where = "%s, NCCL %s" % (torch.cuda.get_device_name(), version)
        self.say("%d ranks, a process each, torch %s, %s" % (self.ranks, torch.__version__, where))
        for problem in problems:
            self.say("\nNot measured: " + problem)
        for name, factor, by_system in calls:
            self.say("\n### %s\n" % name)
            self.say("| bytes |" + "".join(" %s us | bus GB/s | host us |" % s for s in SYSTEMS))
            self.say("|---" * (1 + 3 * len(SYSTEMS)) + "|")
            size = 4 * self.ranks
            while size <= self.options.max_bytes:
                row = self.measure(name, factor, by_system, size // 4, end)
                if row is None:
                    self.say("\nThe time is over.")
                    break
                self.say(row)
                size *= 16
        if self.rank == 0:
            self.pack()
        torch.distributed.barrier(group=self.host)
        syncline.destroy_process_group()
        torch.distributed.destroy_process_group()

    def pack(self):
        """torch's foreach copy of 1,000 gradients into one buffer, beside a plain copy."""
        torch = self.torch
        generator = random.Random(1)
        weights = [2 ** generator.uniform(6, 20) for _ in range(1000)]
        total = min(100 << 20, self.options.max_bytes)  # Elements: 400 MiB.
        sizes = [int(weight / sum(weights) * total) | 1 for weight in weights]
        gradients = [
            torch.full((size,), float(i % 64), device=self.device) for i, size in enumerate(sizes)
        ]
        bucket = torch.zeros(sum(sizes), device=self.device)
        other = torch.empty_like(bucket)
        views = list(bucket.split(sizes))

        def cost(call):
            call()
            self.synchronize()
            rounds = []
            for _ in range(7):
                begin = time.perf_counter()
                for _ in range(20):
                    call()
                self.synchronize()
                rounds.append((time.perf_counter() - begin) / 20 * 1e6)
            return statistics.median(rounds)

        moved = 8 * bucket.numel() / 1000
        plain = cost(lambda: other.copy_(bucket))
        foreach = cost(lambda: torch._foreach_copy_(views, gradients))
        right = all(bool((view == float(i % 64)).all()) for i, view in enumerate(views))
        print("\n### 1,000 gradients, %.0f MiB of float32, packed\n" % (bucket.numel() / (1 << 18)))
        print("| what | us | GB/s | of a plain copy |\n|---|---|---|---|")
        print("| plain copy | %.1f | %.0f | 1.00 |" % (plain, moved / plain))
        print(
            "| torch's foreach copy%s | %.1f | %.0f | %.2f |"
            % ("" if right else " (WRONG)", foreach, moved / foreach, plain / foreach),
            flush=True,
        )
        if not right:
            raise AssertionError("the gradients were not packed")


def main():
    """Starts the ranks, or is one. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--max-bytes", type=int, default=256 << 20)
    parser.add_argument("--seconds", type=float, default=0.05, help="for each system and size")
    parser.add_argument("--cpu", action="store_true", help="on tensors of the host")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        Rank(options.rank, options.ranks, options).run(options.path)
        return 0
    with tempfile.TemporaryDirectory(prefix="syncline_torch_calls_") as path:
        children = [
            subprocess.Popen(
                [
                    sys.executable,
                    os.path.abspath(__file__),
                    *sys.argv[1:],
                    "--rank=%d" % rank,
                    "--path=" + path,
                ]
            )
            for rank in range(options.ranks)
        ]
        try:
            while any(child.poll() is None for child in children):
                if any(child.poll() for child in children):
                    return 1  # The others would wait for it.
                time.sleep(0.05)
            return max(abs(child.returncode) for child in children) and 1
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main())
