"""DistributedDataParallel is torch's: by isinstance, by every method, by how libraries use it."""

import inspect

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import models
import torch
from syncline.torch import DistributedDataParallel
from torch import nn
from torch.distributed.algorithms.join import JoinHook
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DistributedDataParallel as TorchsOwn

torch.set_num_threads(1)


class TwoHeads(nn.Module):
    """Two outputs, which depend on parameters of their own, or on `trunk` as well."""

    def __init__(self, *, shares=False):
        super().__init__()
        self.trunk = nn.Linear(2, 2)
        self.heads = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
        self.shares = shares
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        first, second = self.trunk(x), x
        return self.heads[0](first), self.heads[1](first if self.shares else second)


def wrapped(world, **options):
    torch.manual_seed(0)
    return DistributedDataParallel(TwoHeads(), process_group=world, **options)


def outputs(module, rank):
    return module(torch.full((1, 2), 1.0 + rank))


def hook(state, bucket):
    raise AssertionError("not called")


# Each method of torch's class with arguments, or None: the constructor and what other tests call.
CALLS = {
    "__init__": None,
    "__getstate__": None,
    "__setstate__": None,
    "_register_accum_grad_hook": (),
    "_delayed_all_reduce_hook": (torch.zeros(1),),
    "_register_delay_all_reduce_hook": (25, None, None),
    "_setup_in_backward_optimizers": (),
    "_fire_reducer_autograd_hook": (0,),
    "_root_copy_hook": (),
    "_module_wait_for_copy_hook": (nn.Identity(),),
    "_log_and_throw": (RuntimeError, "what torch says"),
    "_ddp_init_helper": ([], [], {}, False),
    "_build_params_for_reducer": (),
    "_assign_modules_buffers": (),
    "_build_debug_param_to_name_mapping": ([],),
    "_get_parameters": (nn.Linear(1, 1),),
    "_check_default_group": None,
    "no_sync": (),
    "_get_active_ddp_module": (),
    "_inside_ddp_forward": (),
    "_run_ddp_forward": (torch.zeros(1, 2),),
    "_clear_grad_buffer": (),
    "_lazy_init": (),
    "_pre_forward": (torch.zeros(1, 2),),
    "_post_forward": (torch.zeros(1, 2),),
    "forward": (torch.zeros(1, 2),),
    "scatter": None,
    "to_kwargs": None,
    "gather": None,
    "train": (),
    "_check_global_requires_backward_grad_sync": (True,),
    "_check_and_sync_module_buffers": (),
    "_sync_final_model": (True,),
    "_match_all_reduce_for_bwd_pass": (),
    "_match_unused_params_allreduce": (),
    "join": (),
    "join_hook": (),
    "_register_buffer_comm_hook": (None, lambda state, buffers: None),
    "register_comm_hook": None,
    "_register_builtin_comm_hook": None,
    "_register_fused_optim": None,
    "_distributed_broadcast_coalesced": ([torch.zeros(2)], 100),
    "_check_sync_bufs_post_fwd": (),
    "_check_sync_bufs_pre_fwd": (),
    "will_sync_module_buffers": (),
    "_find_common_rank": (0, True),
    "_sync_buffers": (),
    "_sync_module_buffers": (0,),
    "_default_broadcast_coalesced": (),
    "_passing_sync_batchnorm_handle": (nn.Linear(1, 1),),
    "_check_comm_hook": (hook,),
    "_get_data_parallel_params": (nn.Linear(1, 1),),
    "_set_params_and_buffers_to_ignore_for_model": (nn.Linear(1, 1), ["bias"]),
    "_get_ddp_logging_data": (),
    "_set_ddp_runtime_logging_sample_rate": (10,),
    "_set_static_graph": None,
    "_remove_autograd_hooks": (),
    "_check_reducer_finalized": (),
    "_set_sparse_metadata": ({},),
    "_update_process_group": None,
    "_set_ddp_sink_clone": (False,),
}

# Parts of torch's own reducer.
REFUSED = {
    "_check_global_requires_backward_grad_sync",
    "_ddp_init_helper",
    "_delayed_all_reduce_hook",
    "_fire_reducer_autograd_hook",
    "_match_all_reduce_for_bwd_pass",
    "_match_unused_params_allreduce",
    "_module_wait_for_copy_hook",
    "_register_accum_grad_hook",
    "_register_delay_all_reduce_hook",
    "_root_copy_hook",
}


def test_every_method_of_torchs_class_works_or_says_why_not():
    of_torch = {name for name, value in vars(TorchsOwn).items() if inspect.isroutine(value)}
    assert of_torch == set(CALLS)

    def run(world):
        module = wrapped(world)
        assert isinstance(module, TorchsOwn) and isinstance(module, nn.Module)
        for name, arguments in CALLS.items():
            if arguments is None:
                continue
            method = getattr(module, name)
            if name in REFUSED:
                with pytest.raises(NotImplementedError, match=f"{name} is a part of how torch's"):
                    method(*arguments)
            elif name == "_log_and_throw":
                with pytest.raises(RuntimeError, match="what torch says"):
                    method(*arguments)
            else:
                method(*arguments)
        module.reducer._set_grads_to_none()
        for name in dir(torch.distributed.Reducer):
            assert hasattr(module.reducer, name)
        with pytest.raises(NotImplementedError, match="_run_comm_hook is a part"):
            module.reducer._run_comm_hook(None)

    ranks.in_threads(1, run)


def test_attributes_are_those_of_torchs_class():
    def run(world):
        module = wrapped(world)
        ours = set(dir(module))
        # Those that torch's constructor assigns.
        source = inspect.getsource(TorchsOwn.__init__) + inspect.getsource(
            TorchsOwn._ddp_init_helper
        )
        assigned = {
            line.split("=")[0].split(":")[0].strip().removeprefix("self.")
            for line in source.splitlines()
            if line.strip().startswith("self.") and "=" in line and "(" not in line.split("=")[0]
        }
        lacking = {name for name in assigned if name.isidentifier() and name not in ours}
        # Of torch's mixed precision and of what the reducer is made of.
        assert lacking == {"_bucket_config", "_mp_stream", "_submodule_to_event"}
        assert module.reducer is module.reducer and module.reducer.stats().steps == 0
        assert isinstance(module.join_hook(), JoinHook)

    ranks.in_threads(1, run)


def test_torch_leaves_its_prefix_out_of_a_checkpoint():
    def run(world):
        names = set(get_model_state_dict(wrapped(world)))
        assert names == {"trunk.weight", "trunk.bias", "heads.0.weight", "heads.1.weight", "seen"}

    ranks.in_threads(1, run)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_a_backward_pass_of_a_forward_pass_without_averages_can_be_given_them(options):
    """As Lightning does for manual optimization, and torch's pipelines for the last micro-batch."""

    def run(world):
        module = wrapped(world, **options)
        for _ in range(3):
            module.zero_grad()
            module.require_backward_grad_sync = False
            first, second = outputs(module, world.rank)
            module.require_backward_grad_sync = True
            loss = first.sum() + second.sum()
            module.require_forward_param_sync = True
            module.reducer._rebuild_buckets()
            module.reducer.prepare_for_backward([loss] if options else [])
            loss.backward()
            assert module.module.heads[1].weight.grad.tolist() == [[1.5] * 2] * 2
        module._check_reducer_finalized()

    ranks.in_threads(2, run)


def test_a_backward_pass_for_each_output_is_one_step():
    def run(world):
        module = wrapped(world)
        for _ in range(3):
            module.zero_grad()
            for output in outputs(module, world.rank):
                output.sum().backward()
            assert module.module.heads[1].weight.grad.tolist() == [[1.5] * 2] * 2
            assert module.module.trunk.weight.grad is not None
            module._check_reducer_finalized()

    ranks.in_threads(2, run)


def test_an_output_that_is_left_out_is_an_error_of_what_comes_next_on_all_ranks():
    def run(world):
        module = wrapped(world)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for what_comes in (optimizer.step, lambda: outputs(module, world.rank)):
            optimizer.zero_grad()
            first, second = outputs(module, world.rank)
            if world.rank == 0:
                with pytest.raises(RuntimeError, match="finished reduction.*rank 1 produced no"):
                    (first.sum() + second.sum()).backward()
            else:
                first.sum().backward()
                with pytest.raises(RuntimeError, match="did not end.*heads.1.weight"):
                    module._check_reducer_finalized()
                with pytest.raises(RuntimeError, match="finished reduction.*'heads.1.weight'"):
                    what_comes()
        first, second = outputs(module, world.rank)
        optimizer.zero_grad()
        (first.sum() + second.sum()).backward()
        assert module.module.heads[1].weight.grad.tolist() == [[1.5] * 2] * 2

    ranks.in_threads(2, run)


def test_outputs_that_share_parameters_cannot_each_have_a_backward_pass():
    def run(world):
        module = wrapped(world)
        module.module.shares = True
        first, second = outputs(module, world.rank)
        first.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match=r"mark a variable ready only once.*on their sum"):
            second.sum().backward()

    ranks.in_threads(1, run)


def test_errors_begin_as_torchs_do():
    def run(world):
        torch.manual_seed(0)
        module = DistributedDataParallel(models.Branches(), process_group=world)
        missing = "^Expected to have finished reduction in the prior iteration before starting"
        with pytest.raises(RuntimeError, match=missing):
            module(torch.ones(2, models.WIDTH), branch=0).sum().backward()

        twice = DistributedDataParallel(models.Checkpointed(True, 2), process_group=world)
        with pytest.raises(RuntimeError, match="^Expected to mark a variable ready only once"):
            twice(torch.ones(2, models.WIDTH, requires_grad=True)).sum().backward()

    ranks.in_threads(1, run)


def test_an_output_device_of_zero_means_nothing_on_the_cpu():
    """torch accepts it, and refuses others."""

    def run(world):
        assert wrapped(world, output_device=0, device_ids=[]).output_device is None
        with pytest.raises(ValueError, match="on one GPU"):
            wrapped(world, output_device=1)

    ranks.in_threads(1, run)


def test_compilation_is_told_that_gradients_are_averaged_in_buckets():
    def run(world):
        module = wrapped(world)
        seen = []
        module.module.register_forward_hook(lambda *_: seen.append(TorchsOwn._active_ddp_module))
        outputs(module, world.rank)
        assert seen == [module] and TorchsOwn._get_active_ddp_module() is None

    ranks.in_threads(1, run)
