"""The networks of the scripts in this folder; it is none of them."""

import torch


class Block(torch.nn.Module):
    """A transformer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.attention = torch.nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


def transformer(width: int = 256, depth: int = 4) -> torch.nn.Module:
    """Of [batch, length, width] to the same."""
    return torch.nn.Sequential(*(Block(width) for _ in range(depth)))


def cnn(width: int = 64, normalised: bool = True) -> torch.nn.Module:
    """Of [batch, 3, height, width] to [batch, 10]."""
    layers: list[torch.nn.Module] = []
    channels = 3
    for i in range(6):
        out = width * 2 ** (i // 2)
        layers.append(torch.nn.Conv2d(channels, out, 3, padding=1, stride=1 + i % 2))
        if normalised:
            layers.append(torch.nn.BatchNorm2d(out))
        layers.append(torch.nn.ReLU())
        channels = out
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, 10)]
    return torch.nn.Sequential(*layers)
