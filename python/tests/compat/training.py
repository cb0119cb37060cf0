"""Data-parallel training by hand, as in the tutorial: gradients are averaged with all_reduce."""

import importlib
import random
import sys

import syncline as dist

xp = importlib.import_module(sys.argv[1])


class DataPartitioner:
    """Partitions a dataset into chunks, one for each rank."""

    def __init__(self, data, sizes, seed=1234):
        indexes = list(range(len(data)))
        random.Random(seed).shuffle(indexes)
        self.data = data
        self.partitions = []
        for frac in sizes:
            part_len = int(frac * len(data))
            self.partitions.append(indexes[:part_len])
            indexes = indexes[part_len:]

    def use(self, partition):
        return [self.data[i] for i in self.partitions[partition]]


def average_gradients(gradients):
    size = float(dist.get_world_size())
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        gradient /= size


def run(rank, size):
    # y = 3 x + 1, by gradient descent.
    points = [(i / 12.0, 3 * i / 12.0 + 1) for i in range(12)]
    mine = DataPartitioner(points, [1.0 / size for _ in range(size)]).use(rank)
    assert len(mine) == 12 // size
    weight, bias = xp.zeros(1), xp.ones(1) * rank
    for parameter in (weight, bias):
        dist.broadcast(parameter, src=0)
    for _ in range(300):
        gradients = [xp.zeros(1), xp.zeros(1)]
        for x, y in mine:
            error = weight * x + bias - y
            gradients[0] += 2 * error * x / len(mine)
            gradients[1] += 2 * error / len(mine)
        average_gradients(gradients)
        weight -= 0.5 * gradients[0]
        bias -= 0.5 * gradients[1]
    assert abs(float(weight[0]) - 3) < 1e-3 and abs(float(bias[0]) - 1) < 1e-3, (weight, bias)
    everywhere = [xp.zeros(1) for _ in range(size)]
    dist.all_gather(everywhere, weight)
    assert all(other.tolist() == weight.tolist() for other in everywhere)


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    run(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
