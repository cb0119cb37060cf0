"""torch.utils.data.DistributedSampler for jobs of Syncline."""

from __future__ import annotations

from typing import Any, TypeVar

from torch.utils.data import Dataset
from torch.utils.data import DistributedSampler as TorchsSampler

from syncline import job, process_groups

_Item = TypeVar("_Item", covariant=True)


class DistributedSampler(TorchsSampler[_Item]):
    """torch's sampler, which gives each rank its part of a data set: the same parts, in each epoch.

    Where `num_replicas` or `rank` is not given, it is that of the job that this process has joined
    by syncline.init_process_group, or else that of torch.distributed, whose group torch's own class
    asks. Raises what torch's does.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if job.is_joined():
            num_replicas = process_groups.get_world_size() if num_replicas is None else num_replicas
            rank = process_groups.get_rank() if rank is None else rank
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
