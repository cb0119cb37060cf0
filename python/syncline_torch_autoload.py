"""Makes torch know the name of the backend "syncline", without an import of Syncline.

`import torch` calls `register` (entry point "torch.backends"). It is a module of its own, outside
of the package, so that it costs nothing else and cannot fail: a Syncline that is damaged raises its
error when a group over it is made, and not when torch is imported.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

_NAME = "syncline"


def register() -> None:
    """Registers the name. syncline.torch, which torch's function for groups imports, does the rest.

    Other backends do not notice: torch's table of plug-ins stays as it is.
    """
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or hasattr(module.Backend, _NAME.upper()):
        return  # A torch without torch.distributed; or Syncline has been imported.
    try:
        kind = module.ProcessGroup.BackendType.CUSTOM
        module.Backend.backend_list.append(_NAME)
        module.Backend.backend_type_map[_NAME] = kind
        module.Backend.backend_capability[_NAME] = ["cpu", "cuda"]
        _import_before_groups(module)
        module.Backend.SYNCLINE = _NAME
    except Exception:  # Of a torch to come: `import syncline.torch` will say what is wrong.
        pass


def _import_before_groups(module: Any) -> None:
    """syncline.torch wraps functions of torch, and is to do so before they are called."""
    of_torch = module._new_process_group_helper

    @functools.wraps(of_torch)
    def helper(*arguments: Any, **named: Any) -> Any:
        if "syncline.torch" not in sys.modules:
            backend = named.get("backend", arguments[3] if len(arguments) > 3 else "")
            if _NAME in str(backend):
                import syncline.torch  # noqa: F401

                return module._new_process_group_helper(*arguments, **named)
        return of_torch(*arguments, **named)

    module._new_process_group_helper = helper
