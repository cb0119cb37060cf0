"""A rank of equivalence_test: trains every combination twice, and writes what differs.

It is run by ranks.in_processes.
"""

import faulthandler
import hashlib
import json
import os
import sys
import traceback
import warnings

import ranks
import syncline as dist
import torch
import torch.distributed
from combinations import COMBINATIONS, Combination, Run
from syncline.torch import DistributedDataParallel

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def wrapped(combination: Combination, ours: bool) -> torch.nn.Module:
    """The model, which at first differs between ranks, as the others have it."""
    torch.manual_seed(dist.get_rank())
    model = combination.model()
    options = dict(combination.options)
    if not ours and combination.theirs is not None:
        options = dict(combination.theirs)
    kind = DistributedDataParallel if ours else torch.nn.parallel.DistributedDataParallel
    kind._set_params_and_buffers_to_ignore_for_model(model, combination.ignored)
    if combination.ignored:  # These are to be equal from the beginning.
        torch.manual_seed(99)
        for name, parameter in model.named_parameters():
            if name in combination.ignored:
                torch.nn.init.normal_(parameter)
    if ours and combination.delayed:
        named = dict(model.named_parameters())
        options["delay_all_reduce_named_params"] = [(n, named[n]) for n in combination.delayed]
        options["param_to_hook_all_reduce"] = named["0.weight"]
    return kind(model, **options)


def train(combination: Combination, ours: bool) -> dict[str, torch.Tensor]:
    """The state after training."""
    module = wrapped(combination, ours)
    hook = combination.hook if ours else combination.their_hook
    if hook is not None:
        module.register_comm_hook(*hook())
    optimizer = combination.optimizer(module.parameters())
    combination.train(
        Run(module, optimizer, combination.data, dist.get_rank(), dist.get_world_size())
    )
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def compare(combination: Combination) -> list[str]:
    """What is wrong on this rank."""
    ours, theirs = train(combination, True), train(combination, False)
    if list(ours) != list(theirs):
        return [f"keys are {list(ours)}, not {list(theirs)}"]
    wrong = []
    for name, tensor in ours.items():
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
            if not torch.equal(tensor, theirs[name]):
                wrong.append(f"{name} is {tensor}, not {theirs[name]}")
            continue
        difference = (tensor - theirs[name]).abs().max().item()
        bound = combination.tolerance * (1 + theirs[name].abs().max().item())
        if not difference <= bound:
            wrong.append(f"{name} differs by {difference}, more than {bound}")
    return wrong + differing_between_ranks(ours, combination.ignored)


def differing_between_ranks(state: dict[str, torch.Tensor], ignored: tuple[str, ...]) -> list[str]:
    """The parameters that are not bitwise equal on all ranks."""
    wrong = []
    for name, tensor in state.items():
        if name.removeprefix("module.") in ignored or "running_" in name or "scale" in name:
            continue
        digest = hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
        everyones: list = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, digest)
        if len(set(everyones)) > 1:
            wrong.append(f"{name} differs between ranks")
    return wrong


def show_stacks_on_abort() -> None:
    """Shows, should this process abort or crash, where its threads are: in Python and in C++."""
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    faulthandler.enable()


def gather(results: dict[str, list[str]]) -> list[dict[str, list[str]]]:
    """Every rank's results. If a rank has died, shows what this one has first found."""
    everyones: list = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(everyones, results)
    except Exception:
        first = next((name for name, wrong in results.items() if wrong), None)
        if first is not None:
            print(f"the first combination with an error is {first}:", *results[first], sep="\n")
        raise
    return everyones


def main() -> None:
    show_stacks_on_abort()
    ranks.join()
    size = dist.get_world_size()
    store = torch.distributed.FileStore(ranks.shared_folder() + "/torch", size)
    torch.distributed.init_process_group("gloo", store=store, rank=dist.get_rank(), world_size=size)
    results = {}
    for name, combination in COMBINATIONS.items():
        try:
            results[name] = compare(combination)
        except Exception:
            results[name] = [traceback.format_exc()]
    everyones = gather(results)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(everyones, file)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Once in about sixty times, threads of torch's gloo abort at exit.


if __name__ == "__main__":
    main()
