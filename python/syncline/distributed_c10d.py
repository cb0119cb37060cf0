"""The names of torch.distributed.distributed_c10d: those of `syncline`, and private ones."""

from __future__ import annotations

from typing import Any

from syncline import *  # noqa: F403
from syncline.coalesced import _coalescing_manager as _coalescing_manager
from syncline.coalesced_calls import Coalescing as _CoalescingManager  # noqa: F401
from syncline.collectives import (  # noqa: F401
    _all_gather_base,
    _reduce_scatter_base,
)
from syncline.reduce_ops import _make_nccl_premul_sum as _make_nccl_premul_sum
from syncline.torch_names import (  # noqa: F401
    _DEFAULT_FIRST_BUCKET_BYTES,
    _abort_process_group,
    _add_ephemeral_timeout_for_all_pgs,
    _broadcast_coalesced,
    _canonicalize_group_rank,
    _check_default_pg,
    _compute_bucket_assignment_by_size,
    _DistributedBackendOptions,
    _DistributedDebugLevel,
    _get_all_pg_configs,
    _get_debug_mode,
    _get_default_group,
    _get_default_store,
    _get_global_rank,
    _get_group_rank,
    _get_group_size,
    _get_pg_config,
    _get_process_group_name,
    _get_process_group_store,
    _group_or_default_group,
    _rank_not_in_group,
    _set_pg_timeout,
    _verify_model_across_ranks,
    _verify_params_across_processes,
    _warn_not_in_group,
    _world,
    dist_backend,
    dynamic,
)


def __getattr__(name: str) -> Any:
    return dynamic(name)
