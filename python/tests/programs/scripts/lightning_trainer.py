"""Lightning's Trainer: over a backend of torch.distributed, with torch's wrapper or Syncline's.

Usage: lightning_trainer.py BACKEND [own] [manual]. Prints what the parameters add up to.
"""

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self, *, is_manual):
        super().__init__()
        self.automatic_optimization = not is_manual
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)
        )

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, batch_index):
        inputs, targets = batch
        self.log("error", nn.functional.l1_loss(self.layers(inputs), targets), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Strategy(DDPStrategy):
    """Lightning's, with Syncline's wrapper in place of torch's."""

    def _setup_model(self, model):
        import syncline.torch

        return syncline.torch.DistributedDataParallel(module=model, **self._ddp_kwargs)


def main():
    backend, *options = sys.argv[1:]
    lightning.seed_everything(5)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    kind = Strategy if "own" in options else DDPStrategy
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=kind(process_group_backend=backend),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression(is_manual="manual" in options)
    trainer.fit(model, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8))
    assert torch.distributed.get_backend() == backend
    print(f"result {sum(p.double().sum().item() for p in model.parameters()):.6f}")


main()
