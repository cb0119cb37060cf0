"""`python -m syncline.launch`: syncline-run for scripts of torch.distributed.launch.

    python -m syncline.launch --nproc-per-node=2 train.py --epochs 3

Without `--use-env` each script gets `--local-rank=N` before its own arguments, as it does there;
torch 1's spelling is asked for by SYNCLINE_LOCAL_RANK_ARGUMENT=--local_rank. All other options are
those of `syncline-run --help`.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from syncline.run import become_launcher

_USE_ENV = ("--use-env", "--use_env")
# In place of SCRIPT: becomes it, with its local rank. Nothing is imported that it need not have.
_WITH_RANK = (
    "import os,sys;n,*a=sys.argv[1:];k=int(n);"
    "o=os.environ.get('SYNCLINE_LOCAL_RANK_ARGUMENT','--local-rank')+'='+os.environ['LOCAL_RANK'];"
    "os.execv(sys.executable,[sys.executable,'-u',*a[:k],o,*a[k:]])"
)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Becomes the launcher, with the arguments of this process."""
    given = sys.argv[1:] if arguments is None else arguments
    options, program = _split(given)
    options = [_whole(option) for option in options]
    uses_env = [option for option in options if option in _USE_ENV]
    options = [option for option in options if option not in _USE_ENV]
    if uses_env or not program:
        become_launcher([*options, *program])
    kind = _kind(options)
    if kind == "no-python":
        sys.exit("syncline.launch: --no-python needs --use-env: only Python gets --local-rank")
    options = [option for option in options if option not in _SCRIPTS[kind]]
    script, *rest = program
    head = {"module": ["-m", script], "run-path": [script], "script": [script]}[kind]
    from syncline.run import interpreter

    worker = [interpreter(), "-c", _WITH_RANK, str(len(head)), *head, *rest]
    become_launcher([*options, "--no-python", *worker])


_SCRIPTS: dict[str, tuple[str, ...]] = {
    "module": ("-m", "--module"),
    "no-python": ("--no-python", "--no_python"),
    "run-path": ("--run-path", "--run_path"),
    "script": (),
}


def _kind(options: list[str]) -> str:
    return next((kind for kind, names in _SCRIPTS.items() if set(options) & set(names)), "script")


def _whole(argument: str) -> str:
    """An option's name, as FindFlag of the launcher reads what it may be shortened to."""
    name = argument[2:].replace("_", "-")
    if not argument.startswith("--") or not name:
        return argument
    names = _SWITCH_NAMES + _VALUE_NAMES
    matches = [name] if name in names else [full for full in names if full.startswith(name)]
    return f"--{matches[0]}" if len(matches) == 1 else argument


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's options, and the script with its arguments."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return arguments[:index], arguments[index + 1 :]
        if not argument.startswith("-") or argument == "-":
            return arguments[:index], arguments[index:]
        alone = "=" in argument or _whole(argument) in _SWITCHES
        # "-t3" has its value in it.
        alone = alone or (not argument.startswith("--") and len(argument) > 2)
        index += 1 if alone else 2
    return arguments, []


_SWITCH_NAMES = (
    "dry-run",
    "help",
    "json",
    "module",
    "no-prefix",
    "no-python",
    "print-manual",
    "run-path",
    "standalone",
    "use-env",
    "version",
    "virtual-local-rank",
)
_VALUE_NAMES = (
    "config",
    "duplicate-stderr-filters",
    "duplicate-stdout-filters",
    "event-log",
    "event-log-handler",
    "failure-grace",
    "health-timeout",
    "interactive",
    "local-addr",
    "local-ranks-filter",
    "log-dir",
    "log-line-prefix-template",
    "log-rotate-keep",
    "log-rotate-size",
    "logs-specs",
    "make-certificates",
    "master-addr",
    "master-port",
    "max-restarts",
    "metrics-port",
    "monitor-interval",
    "nnodes",
    "node-rank",
    "nproc-per-node",
    "numa-binding",
    "print-completion",
    "rdzv-backend",
    "rdzv-conf",
    "rdzv-endpoint",
    "rdzv-id",
    "redirects",
    "role",
    "shutdown-timeout",
    "signals-to-forward",
    "signals-to-handle",
    "start-method",
    "status-line",
    "tee",
    "tls",
    "tls-ca",
    "tls-cert",
    "tls-key",
    "tls-peer-name",
)
_SWITCHES = frozenset(
    spelled for name in _SWITCH_NAMES for spelled in (f"--{name}", f"--{name.replace('-', '_')}")
) | {"-m", "-h"}


if __name__ == "__main__":
    main()
