"""Small models for the combinations of equivalence_test, and a batch for each."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 12


def mlp():
    return nn.Sequential(
        nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 4)
    )


def channels_last_cnn():
    return cnn().to(memory_format=torch.channels_last)


def batch_norm():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 4)
    )


def lstm():
    return Outermost(nn.LSTM(WIDTH, 8, batch_first=True))


class Outermost(nn.Module):
    """Of a module whose outputs are a tuple."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def transformer():
    return nn.TransformerEncoderLayer(
        WIDTH, nhead=3, dim_feedforward=20, dropout=0.0, batch_first=True
    )


def embedding(sparse=False):
    return nn.Sequential(nn.Embedding(20, 6, sparse=sparse), nn.Flatten(), nn.Linear(18, 4))


def embedding_bag():
    return nn.Sequential(nn.EmbeddingBag(20, 6, sparse=True, mode="sum"), nn.Linear(6, 4))


class Tied(nn.Module):
    """One matrix at both ends, and one layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.middle = nn.Linear(6, 6)
        self.out = nn.Linear(6, 20, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        x = torch.tanh(self.middle(self.table(x)))
        return self.out(torch.tanh(self.middle(x)))


class MixedTypes(nn.Module):
    """Parameters of three types."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.second = nn.Linear(8, 8).double()
        self.third = nn.Linear(8, 4).to(torch.bfloat16)

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.first(x)).double()))
        return self.third(x.to(torch.bfloat16)).float()


class Complex(nn.Module):
    """Complex parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 4, dtype=torch.complex64) / 4)

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


class Branches(nn.Module):
    """Uses one of three branches, and never a fourth one."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(WIDTH, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
        self.never = nn.Linear(8, 4)

    def forward(self, x, branch=0):
        return self.branches[branch](torch.tanh(self.trunk(x)))


@dataclass
class Outputs:
    first: torch.Tensor
    others: dict


class ManyOutputs(nn.Module):
    """Returns tensors inside a dataclass and a dictionary."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(3))

    def forward(self, *, x):
        a, b, c = (layer(x) for layer in self.layers)
        return Outputs(a, {"b": b, "c": [c]})


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in the backward pass."""

    def __init__(self, use_reentrant, times=1):
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 4)
        self.use_reentrant = use_reentrant
        self.times = times

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for _ in range(self.times):
            for block in self.blocks:
                x = torch.tanh(checkpoint(block, x, use_reentrant=self.use_reentrant))
        return self.last(x)


class Backwards(nn.Module):
    """Layers that are registered last first, so that gradients do not come as was expected."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


class WithBuffers(nn.Module):
    """Buffers of several types that forward changes and replaces; one of them is used."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))

    def forward(self, x):
        self.steps += 1
        self.scale = self.scale * 0.9 + 0.1 * (1 + x.mean())
        return self.layer(x) * self.scale


class Scaled(nn.Module):
    """A parameter of the root module itself, one without dimensions, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layer = nn.Linear(WIDTH, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.layer(x)) * self.scale


def vectors(generator):
    return torch.randn(6, WIDTH, generator=generator)


def images(generator):
    return torch.randn(3, 3, 8, 8, generator=generator)


def tokens(generator):
    return torch.randint(0, 20, (5, 3), generator=generator)


def sequences(generator):
    return torch.randn(3, 5, WIDTH, generator=generator)
