"""Where Syncline differs from torch.distributed's stores, elastic and launchers, as a table.

    python3 docs/compatibility.py > docs/compatibility.md

What is not in the table is the same: docs/compatibility_test.py walks over torch's public names,
and fails for one that Syncline lacks, or has with other parameters, unless the table says why.
"""

from __future__ import annotations

TORCH = "2.13"

# Torch's stores, and ours. Of each, methods of which something differs.
STORES = ("Store", "HashStore", "FileStore", "TCPStore", "PrefixStore")

STORE_DIFFERENCES = {
    "Store.add": "a value that is no number is a DistStoreError; torch's stores that serve "
    "themselves end with ValueError, and its TCPStore's server with the connection",
    "Store.append": "on every store. The key's value and the new part are one atomic step",
    "Store.barrier": "the same key can be used again, by as many callers",
    "Store.clone": "of a HashStore another object over the same contents, with a timeout of its "
    "own",
    "Store.get": "takes a `timeout` too",
    "Store.has_extended_api": "true of every store; torch's FileStore says no",
    "Store.list_keys": "takes a `prefix` too, and is sorted; a FileStore's counter is not among "
    "them",
    "Store.multi_get": "takes a `timeout` too",
    "Store.multi_set": "lists of different lengths are a ValueError with every store",
    "Store.num_keys": "of a TCPStore that was made with a `world_size`, one more than were set, as "
    "in torch; of a FileStore those that were set, without torch's counter. Of a PrefixStore its "
    "own; torch's counts all of the store below",
    "Store.queue_len": "a FileStore has no queues, as in torch",
    "Store.queue_pop": "takes a `timeout` too. Pops that wait are served in the order of their "
    "coming",
    "Store.queue_push": "a wait for a queue's key ends for all that wait, not for one",
    "Store.delete_key": "works with every store, and says of a FileStore's key that is gone that "
    "it "
    "was not there",
    "Store.set": "an empty key is a ValueError",
    "Store.set_timeout": "a time that is not positive is a ValueError. Of a PrefixStore it changes "
    "the prefix's own, not that of the store below",
    "Store.timeout": "of a FileStore and a HashStore also a parameter of the constructor",
    "Store.wait": "`timeout` may be None. The error is a DistStoreTimeoutError, which is a "
    "DistStoreError and a TimeoutError with every store, and begins with `Wait timeout: `",
    "HashStore.__init__": "takes a `timeout` too",
    "FileStore.__init__": "takes a `timeout` too. `world_size` has no effect: the last process to "
    "leave removes the file",
    "TCPStore.__init__": "`use_libuv` has no effect: gRPC serves. The server listens at "
    "`host_name` "
    "alone, not at all addresses. Workers that are missing are a DistStoreTimeoutError",
    "TCPStore.libuvBackend": "False",
    "PrefixStore._underlying_non_prefix_store": "missing; `underlying_store` leads there",
}

# Torch's modules, and those of ours that have the same names.
MODULES = {
    "torch.distributed.launcher.api": "syncline.elastic.launcher",
    "torch.distributed.elastic.agent.server.api": "syncline.elastic.agent",
    "torch.distributed.elastic.agent.server.local_elastic_agent": "syncline.elastic.agent",
    "torch.distributed.elastic.events": "syncline.elastic.events",
    "torch.distributed.elastic.metrics": "syncline.elastic.metrics",
    "torch.distributed.elastic.multiprocessing": "syncline.elastic.multiprocessing",
    "torch.distributed.elastic.multiprocessing.errors": "syncline.elastic.multiprocessing.errors",
    "torch.distributed.elastic.rendezvous": "syncline.elastic.rendezvous",
    "torch.distributed.elastic.rendezvous.registry": "syncline.elastic.rendezvous",
    "torch.distributed.elastic.timer": "syncline.elastic.timer",
    "torch.distributed.elastic.timer.api": "syncline.elastic.timer",
}

_ONE_AGENT = (
    "the agent is the launcher, a program in C++, whose insides no class of Python is; a "
    "LocalElasticAgent starts it"
)
_NO_PROCESSES = "the launcher starts workers; processes without it are syncline.multiprocessing's"

ELASTIC_DIFFERENCES = {
    "agent.ElasticAgent": _ONE_AGENT,
    "agent.SimpleElasticAgent": _ONE_AGENT,
    "agent.Worker": _ONE_AGENT,
    "agent.WorkerGroup": _ONE_AGENT,
    "agent.LocalElasticAgent": "has `run` alone. `start_method` and `exit_barrier_timeout` have no "
    "effect: workers are programs of their own, and launchers leave together. "
    "A rendezvous handler of one's own goes by LaunchConfig's `rdzv_backend`",
    "launcher.LaunchConfig": "`start_method`, `monitor_interval` and `metrics_cfg` have no effect; "
    "no NUMA binding is chosen by itself",
    "launcher.elastic_launch": "the job is a process of its own, and one that is stopped by a "
    "signal "
    "raises SignalException. `health_check_server` is refused: see --metrics-port. A rendezvous "
    "handler written in Python is asked once; nodes that come later do not join",
    "events.get_logging_handler": "a name that is not known is a ValueError. `register_handler` "
    "adds "
    "names",
    "multiprocessing.DefaultLogsSpecs": "has no `reify`: the launcher names the files, see "
    "docs/launcher.md",
    "multiprocessing.LogsSpecs": "as DefaultLogsSpecs; deriving from it changes nothing",
    "multiprocessing.LogsDest": "the launcher names the files",
    "multiprocessing.MultiprocessContext": _NO_PROCESSES,
    "multiprocessing.PContext": _NO_PROCESSES,
    "multiprocessing.SubprocessContext": _NO_PROCESSES,
    "multiprocessing.start_processes": _NO_PROCESSES,
    "errors.ErrorHandler": "has no `override_error_code_in_rootcause_data`: the launcher's exit "
    "code "
    "is the worker's",
    "timer.FileTimerServer": "a worker that is late gets the signal of its client; torch's server "
    "ends its own process too",
    "timer.expires": "without `configure` it finds the server by TORCHELASTIC_TIMER_FILE",
}

LAUNCH = {
    "torch.distributed.run": "`syncline-run`, `python -m syncline.run`: all of its options, and "
    "what "
    "each means here is in [launcher.md](launcher.md). Lines have a prefix with their rank; "
    "`--no-prefix` shows them as torchrun does",
    "torch.distributed.launch": "`python -m syncline.launch`: the same with `--use-env`, without "
    "which scripts get `--local-rank=N` (SYNCLINE_LOCAL_RANK_ARGUMENT=--local_rank: as torch 1)",
    "torch.distributed.breakpoint": "`syncline.breakpoint(rank)` begins where it was called, on "
    "the "
    "launcher's terminal, and lets the other ranks wait for a day. `--interactive RANK` gives a "
    "worker the whole terminal",
}


def _rows(differences: dict[str, str]) -> str:
    lines = ["| name | what differs |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(differences.items())]
    return "\n".join(lines)


def document() -> str:
    modules = "\n".join(f"| `{theirs}` | `{ours}` |" for theirs, ours in sorted(MODULES.items()))
    return f"""# What differs from torch

Names, parameters, defaults and errors of `torch.distributed`, version {TORCH}, and what differs
here. Made by `docs/compatibility.py`; a test walks over torch's public names and compares them.

## Stores

`syncline.Store`, `HashStore`, `FileStore`, `TCPStore` and `PrefixStore` have the methods,
parameters, defaults and results of torch's classes of these names, except:

{_rows(STORE_DIFFERENCES)}

A class can be derived from `Store`, with `set`, `get`, `add`, `check` and `compare_set` of its
own: `init_process_group` takes its objects, and those of torch's stores as they are. In the other
direction `syncline.torch.to_torch_store(store)` is a store for
`torch.distributed.init_process_group`.

## Elastic

| torch | Syncline |
|---|---|
{modules}

What is public there is here, with the same parameters and defaults, except:

{_rows(ELASTIC_DIFFERENCES)}

`syncline.elastic.run(function, nprocs)` calls a function of a notebook in workers of this host.

## Launchers

{_rows(LAUNCH)}
"""


if __name__ == "__main__":
    print(document(), end="")
