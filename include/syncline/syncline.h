// All of the C++ API. Programs that build quickly include only the headers that they use.
//
//   #include "syncline/syncline.h"
//
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<syncline::World> world, syncline::World::Init({}));
//   std::vector<float> x = {1, 2, 3};
//   SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(syncline::Tensor::Of(x)));
#ifndef SYNCLINE_SYNCLINE_H_
#define SYNCLINE_SYNCLINE_H_

#if __cplusplus < 201703L
#error "Syncline needs C++17. With Bazel, .bazelrc says so: build --cxxopt=-std=c++17"
#endif

#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/byte_collectives.h"
#include "syncline/check.h"
#include "syncline/collective.h"
#include "syncline/comm_hook.h"
#include "syncline/completion.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/device_memory.h"
#include "syncline/dlpack.h"
#include "syncline/dtype.h"
#include "syncline/enum_set.h"
#include "syncline/error_origin.h"
#include "syncline/etcd_store.h"
#include "syncline/extended_store.h"
#include "syncline/file_store.h"
#include "syncline/fork.h"
#include "syncline/hash_store.h"
#include "syncline/hooks.h"
#include "syncline/info.h"
#include "syncline/interrupt.h"
#include "syncline/launcher_heartbeat.h"
#include "syncline/log.h"
#include "syncline/mpi_comm.h"
#include "syncline/op_kind.h"
#include "syncline/parameter_averager.h"
#include "syncline/peer.h"
#include "syncline/preemption.h"
#include "syncline/prefix_store.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/reducer.h"
#include "syncline/reducer_stats.h"
#include "syncline/registry.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/store.h"
#include "syncline/stream.h"
#include "syncline/subgroups.h"
#include "syncline/tcp_store.h"
#include "syncline/tensor.h"
#include "syncline/tensor_queue.h"
#include "syncline/version.h"
#include "syncline/work.h"
#include "syncline/world.h"

#endif  // SYNCLINE_SYNCLINE_H_
