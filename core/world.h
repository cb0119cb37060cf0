// All processes of a job, and the groups among them.
#ifndef SYNCLINE_CORE_WORLD_H_
#define SYNCLINE_CORE_WORLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/process_group.h"
#include "core/store.h"

namespace syncline {

// How a process joins. Either `store` with `rank` and `size`, or `init_method`:
//   env://                                      RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
//                                               from the environment, as launchers set them
//   tcp://host:port?rank=R&world_size=N         rank 0 hosts the store at that address
//   file:///path?rank=R&world_size=N            a file that all processes reach
// `rank` and `size`, where given, take precedence over what the URL or the environment says.
struct WorldOptions {
  std::string backend = "gloo";
  std::string init_method;  // Empty with a store; otherwise empty means env://.
  std::shared_ptr<Store> store;
  int64_t rank = -1;
  int64_t size = -1;
  absl::Duration timeout = kDefaultTimeout;  // For joining, and the groups' default. A store's
                                             // server must answer within 5 minutes all the same.
  std::string group_name;                    // Worlds of different names may share a store.
};

// One process's (or thread's) membership of a job. Thread-safe.
class World {
 public:
  // Joins; returns once all ranks have. Refuses a rank that is taken and a size on which the
  // ranks do not agree; a timeout says which ranks have not joined.
  static absl::StatusOr<std::shared_ptr<World>> Init(const WorldOptions& options);

  int64_t rank() const { return group_->rank(); }
  int64_t size() const { return group_->size(); }

  // The group of all ranks.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // The store through which the world met.
  const std::shared_ptr<Store>& store() const { return options_.store; }

  // A group of `ranks` (of this world), numbered in that order; all ranks of this world must call
  // it, with equal arguments and in the same order. Null on ranks that are not in it.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroup(const std::vector<int64_t>& ranks,
                                                         std::optional<std::string> backend = {},
                                                         ProcessGroup::Timeout timeout = {});

  // Closes the group of all ranks; bounded by `timeout`. Groups made by NewGroup live on. This
  // rank may then join again, with the same store, once all ranks do.
  void Close(absl::Duration timeout = absl::Seconds(10));

 private:
  World(const WorldOptions& options, std::shared_ptr<Store> round_store, std::string local_address)
      : options_(options),
        round_store_(std::move(round_store)),
        local_address_(std::move(local_address)) {}

  // Options of a group of this world; rank and size are left to the caller.
  ProcessGroup::Options GroupOptions(absl::string_view name) const;

  const WorldOptions options_;                // With rank, size and store filled in.
  const std::shared_ptr<Store> round_store_;  // The part of the store that is this world's.
  const std::string local_address_;
  std::shared_ptr<ProcessGroup> group_;
  absl::Mutex mutex_;
  int groups_made_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_WORLD_H_
