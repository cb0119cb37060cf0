"""The names of torch.distributed.constants."""

from syncline.process_groups import default_pg_timeout
from syncline.torch_names import default_pg_nccl_timeout

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]
