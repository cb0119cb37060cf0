"""The backend "syncline" of torch.distributed. Its public names are those of syncline.torch."""
