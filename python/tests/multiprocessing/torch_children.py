"""What the processes of torch_tensors_test run."""

import torch


def fill(inbox, outbox):
    """Sets all elements of the tensors that come to what comes with them."""
    while True:
        item = inbox.get()
        if item is None:
            return
        tensors, value = item
        with torch.no_grad():
            for tensor in tensors:
                tensor.fill_(value)
        outbox.put(tensors)
        del item, tensors, tensor


def train(models, rank):
    with torch.no_grad():
        for model in models:
            for parameter in model.parameters():
                parameter[..., rank] = rank + 1.0


def make(outbox, count):
    for i in range(count):
        outbox.put(torch.full((1000,), float(i)))
