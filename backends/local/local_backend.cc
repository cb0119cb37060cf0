// Ranks as threads of one process.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "backends/local/local_group.h"
#include "core/group/blocking_backend.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::local {
namespace {

// The groups of this process, by the number under which rank 0 publishes them.
class GroupTable {
 public:
  static GroupTable& Get() {
    static auto* const table = new GroupTable;
    return *table;
  }

  int64_t Add(const std::shared_ptr<LocalGroup>& group) {
    absl::MutexLock lock(&mutex_);
    for (auto it = groups_.begin(); it != groups_.end();) {
      it = it->second.expired() ? groups_.erase(it) : std::next(it);
    }
    groups_[++last_] = group;
    return last_;
  }

  std::shared_ptr<LocalGroup> Find(int64_t number) {
    absl::MutexLock lock(&mutex_);
    auto it = groups_.find(number);
    return it == groups_.end() ? nullptr : it->second.lock();
  }

 private:
  absl::Mutex mutex_;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::weak_ptr<LocalGroup>> groups_ ABSL_GUARDED_BY(mutex_);
};

class LocalBackend final : public group::BlockingBackend {
 public:
  LocalBackend(std::shared_ptr<LocalGroup> group, int rank)
      : group::BlockingBackend(rank), group_(std::move(group)) {}

  ~LocalBackend() override { group_->Leave(rank(), BackendError("its backend was destroyed")); }

  absl::string_view name() const override { return "local"; }

  void Abort(const absl::Status& cause) override { group_->Leave(rank(), cause); }

 private:
  absl::StatusOr<int> RunBlocking(const CallContext& context) override {
    if (IsP2p(context.collective->kind)) return group_->MatchMessage(rank(), context);
    SYNCLINE_RETURN_IF_ERROR(group_->RunCollective(rank(), context));
    return 0;
  }

  const std::shared_ptr<LocalGroup> group_;
};

constexpr absl::string_view kGroupKey = "group";

absl::StatusOr<std::shared_ptr<LocalGroup>> OpenGroup(const BackendConfig& config) {
  auto group = std::make_shared<LocalGroup>(config.size);
  const std::string address = absl::StrCat(getpid(), "/", GroupTable::Get().Add(group));
  SYNCLINE_RETURN_IF_ERROR(config.store->Set(kGroupKey, address));
  return group;
}

absl::StatusOr<std::shared_ptr<LocalGroup>> FindGroup(const BackendConfig& config) {
  auto address = config.store->Get(kGroupKey, config.deadline.Remaining());
  if (!address.ok()) {
    if (!config.deadline.Expired()) return address.status();
    return WithRanks(
        TimeoutError(absl::StrCat("rank 0 of ", config.size, " has not joined the group after ",
                                  absl::FormatDuration(config.deadline.timeout()))),
        {0});
  }
  const std::vector<std::string> parts = absl::StrSplit(*address, '/');
  int64_t pid, number;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number)) {
    return StoreError(absl::StrCat("key '", kGroupKey, "' of ", config.store->ToString(), " is '",
                                   *address, "', which backend local did not write"));
  }
  if (pid != getpid()) {
    return BackendError(absl::StrCat("rank ", config.rank, " is in process ", getpid(),
                                     " but rank 0 is in process ", pid,
                                     ": backend local joins threads of one process only; use gloo "
                                     "between processes"));
  }
  std::shared_ptr<LocalGroup> group = GroupTable::Get().Find(number);
  if (group == nullptr) {
    return WithRanks(BackendError("rank 0 has left the group before all ranks had joined"), {0});
  }
  if (group->size() != config.size) {
    return MismatchError(absl::StrCat("rank ", config.rank, " joins a group of ", config.size,
                                      " ranks, rank 0 made one of ", group->size()));
  }
  return group;
}

absl::StatusOr<std::shared_ptr<Backend>> MakeLocal(const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<LocalGroup> group,
                            config.rank == 0 ? OpenGroup(config) : FindGroup(config));
  SYNCLINE_RETURN_IF_ERROR(group->Join(config.rank, config.deadline));
  return std::make_shared<LocalBackend>(std::move(group), config.rank);
}

const BackendRegistry::Registration kLocal("local", {Capabilities::AllThroughHost(), &MakeLocal});

}  // namespace
}  // namespace syncline::local
