"""Calls that mypy --strict refuses. Each marked line is an error of the marked code."""

from __future__ import annotations

import numpy as np
import syncline as dist

x = np.zeros(3)

dist.all_reduce(x, "sum")  # refused: arg-type
dist.all_reduce(x, op=dist.ReduceOp.MEAN)  # refused: attr-defined
dist.all_reduce()  # refused: call-arg
dist.all_reduce(x, async_op=True).wait()  # refused: union-attr
dist.broadcast(x, src="0")  # refused: arg-type
dist.recv(x, src=0).wait()  # refused: attr-defined
dist.init_process_group(timeout=30)  # refused: arg-type
dist.init_process_group(world=2)  # refused: call-arg
dist.new_group("0, 1")  # refused: arg-type
dist.reduce_scatter(x, x, "sum")  # refused: arg-type
dist.all_to_all_single(x, x, output_split_sizes=3)  # refused: arg-type
dist.all_gather_object([], x, codec="marshal")  # refused: arg-type
dist.P2POp(dist.isend, x, "0")  # refused: arg-type
dist.batch_isend_irecv([x, dist.isend])  # refused: list-item
rank: str = dist.get_rank()  # refused: assignment
dist.HashStore().set("key", 5)  # refused: arg-type
dist.HashStore().get("key").encode()  # refused: attr-defined
dist.TCPStore("localhost", "80")  # refused: arg-type
dist.GradientReducer([x], bucket_cap_mb="25")  # refused: arg-type
dist.preemption.install(signals="SIGTERM")  # refused: arg-type
dist.preemption.reached("3")  # refused: arg-type
dist.elastic.record(3)  # refused: arg-type
dist.no_such_function()  # refused: attr-defined
dist.ProcessGroup().all_reduce(x, 0)  # refused: arg-type
