"""Batch normalisation over the batches of all ranks, on the CPU too."""

from __future__ import annotations

from typing import Any

import torch

from syncline._syncline import ProcessGroup
from syncline.torch.ddp import groups

_ON_CPU = torch.empty(0)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """As torch.nn.SyncBatchNorm, with the same parameters, but on any device and any group.

    In training, mean and variance are those of the inputs of all ranks of `process_group`, which is
    one of syncline's or of torch.distributed's, or None for all ranks. Inputs have the shape
    [batch, channels, ...]; ranks may have batches of different sizes, also empty ones. Forward and
    backward are collective. S. Ioffe, C. Szegedy: "Batch Normalization", ICML 2015, algorithm 1;
    the ranks' moments are joined as in T. Chan, G. Golub, R. LeVeque: "Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances", 1979, section 2.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises `input`; raises ValueError if it has less than two dimensions."""
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        averaged = self.training and self.track_running_stats
        factor = 0.0 if self.momentum is None else self.momentum
        if averaged and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        group = self._group() if from_batch and self.training else None
        if group is None or group.size() == 1:
            return torch.nn.functional.batch_norm(
                input,
                None if self.training and not averaged else self.running_mean,
                None if self.training and not averaged else self.running_var,
                self.weight,
                self.bias,
                from_batch,
                factor,
                self.eps,
            )
        output: torch.Tensor
        output, mean, variance, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, group
        )
        if averaged and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
        return output

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_group: Any = None
    ) -> torch.nn.Module:
        """`module` with all BatchNorm layers in it, and torch's SyncBatchNorm, replaced by this.

        Parameters and buffers stay the same objects. The module itself is returned unless it is
        such a layer.
        """
        converted = module
        kind = torch.nn.modules.batchnorm._BatchNorm
        if isinstance(module, kind) and not isinstance(module, SyncBatchNorm):
            converted = _replacement(module, process_group)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted

    def _group(self) -> ProcessGroup:
        group = self.process_group
        return groups.syncline_group(groups.default_group() if group is None else group)


def _replacement(layer: Any, process_group: Any) -> SyncBatchNorm:
    made = SyncBatchNorm(
        layer.num_features,
        layer.eps,
        layer.momentum,
        layer.affine,
        layer.track_running_stats,
        process_group,
    )
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    made.running_mean, made.running_var = layer.running_mean, layer.running_var
    made.num_batches_tracked = layer.num_batches_tracked
    made.training = layer.training
    if hasattr(layer, "qconfig"):
        made.qconfig = layer.qconfig
    return made


class _Normalize(torch.autograd.Function):
    """Input, weight and bias to output, and to mean, variance and count over all ranks."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, eps: float, group: Any) -> Any:
        mean, variance, count = _moments(input, group)
        # A rank with more values than one need not look, which on a device it would wait for.
        if input.numel() <= input.shape[1] and count <= 1:
            raise ValueError(
                f"SyncBatchNorm: more than 1 value per channel is needed, and the {group.size()} "
                f"ranks have {int(count)} together"
            )
        scale = torch.rsqrt(variance + eps)
        ctx.group = group
        ctx.count = count
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.mark_non_differentiable(mean, variance, count)
        if input.numel() == 0:
            return torch.empty_like(input), mean, variance, count
        output = torch.nn.functional.batch_norm(
            input, mean.to(input.dtype), variance.to(input.dtype), weight, bias, False, 0.0, eps
        )
        return output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Any, *unused: Any) -> Any:
        input, weight, mean, scale = ctx.saved_tensors
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        deviation = (input - mean.view(shape)) * scale.view(shape)  # Normalised.
        sums = torch.stack([gradient.sum(dims), (gradient * deviation).sum(dims)]).to(mean.dtype)
        for_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        for_input = None
        if ctx.needs_input_grad[0]:
            everyones = (sums if sums.is_cuda else sums.cpu()).clone()
            ctx.group.all_reduce(everyones)
            means = (everyones.to(sums.device) / ctx.count).to(input.dtype)
            for_input = gradient - means[0].view(shape) - deviation * means[1].view(shape)
            factor = scale if weight is None else scale * weight
            for_input = (for_input * factor.view(shape)).to(input.dtype)
        return for_input, for_weight, for_bias, None, None


def _moments(input: torch.Tensor, group: ProcessGroup) -> tuple[Any, Any, Any]:
    """Mean, variance and number of values of each channel, over all ranks; equal on all."""
    channels = input.shape[1]
    dims = [d for d in range(input.dim()) if d != 1]
    dtype = torch.promote_types(input.dtype, torch.float32)
    served = input if input.is_cuda else _ON_CPU
    mine = served.new_zeros(2 * channels + 1, dtype=dtype)
    if input.numel() > 0:
        variance, mean = torch.var_mean(input.to(dtype), dims, correction=0)
        mine[:channels] = mean
        mine[channels:-1] = variance
        mine[-1] = input.numel() // channels
    everyones = served.new_empty((group.size(), 2 * channels + 1), dtype=dtype)
    group.all_gather_single(everyones, mine)
    counts = everyones[:, -1:]
    means, variances = everyones[:, :channels], everyones[:, channels:-1]
    total = counts.sum()
    mean = (counts * means).sum(0) / total.clamp(min=1)
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total.clamp(min=1)
    return mean.to(input.device), variance.to(input.device), total.to(input.device)
