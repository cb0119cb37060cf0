"""DistributedDataParallel over Syncline. Its public names are those of syncline.torch."""
