#include "core/group/device_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/group/native_backend.h"
#include "core/group/staged_backend.h"
#include "syncline/error_origin.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// How often a rank that waits for another one looks whether that lives.
constexpr absl::Duration kSlice = absl::Milliseconds(500);

std::string KeyOf(int rank) { return absl::StrCat("use/", rank); }

// What `rank` has published: why it cannot use the preferred backend; empty if it can.
absl::StatusOr<std::string> ObstacleOf(int rank, const BackendConfig& config) {
  while (true) {
    const absl::Duration slice = std::min(kSlice, config.deadline.Remaining());
    const absl::StatusOr<std::string> obstacle = config.store->Get(KeyOf(rank), slice);
    if (obstacle.ok() || KindOf(obstacle.status()) != ErrorKind::kTimeout) return obstacle;
    if (config.check_peers != nullptr) SYNCLINE_RETURN_IF_ERROR(config.check_peers());
    if (!config.deadline.Expired()) continue;
    return WithRanks(
        TimeoutError(absl::StrCat("rank ", rank, " has not said within ",
                                  absl::FormatDuration(config.deadline.timeout()),
                                  " which backend it can use for tensors of CUDA devices")),
        {rank});
  }
}

// Whether all ranks can use backend `preferred`. Each publishes whether it can; one that cannot
// waits for nobody.
absl::StatusOr<bool> AllCanUse(const std::string& preferred, const BackendConfig& config) {
  if (!BackendRegistry::Has(preferred)) return false;  // The same in all builds of a version.
  const absl::Status usable = BackendRegistry::Check(preferred);
  const std::string own = usable.ok() ? "" : std::string(usable.message());
  SYNCLINE_RETURN_IF_ERROR(config.store->Set(KeyOf(config.rank), own));
  if (!usable.ok()) return false;
  for (int rank = 0; rank < config.size; ++rank) {
    if (rank == config.rank) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const std::string obstacle, ObstacleOf(rank, config));
    if (obstacle.empty()) continue;
    Log(LogLevel::kWarning,
        absl::StrCat("tensors of CUDA devices go through memory of the host: rank ", rank,
                     " cannot use backend ", preferred, ": ", obstacle));
    return false;
  }
  return true;
}

std::shared_ptr<DeviceBackend> MakeNative(std::shared_ptr<Backend> backend,
                                          Capabilities capabilities) {
  capabilities.devices = {DeviceType::kCuda};
  return std::make_shared<NativeBackend>(std::move(backend), capabilities);
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceBackend>> MakeDeviceBackend(
    const BackendRegistry::Entry& entry, const std::shared_ptr<Backend>& backend,
    const BackendConfig& config) {
  if (entry.capabilities.devices.count(DeviceType::kCuda) != 0) {
    return MakeNative(backend, entry.capabilities);
  }
  if (!entry.cuda_backend.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_native, AllCanUse(entry.cuda_backend, config));
    if (is_native) {
      SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry preferred,
                                BackendRegistry::Find(entry.cuda_backend));
      BackendConfig own = config;
      own.store = std::make_shared<PrefixStore>(entry.cuda_backend, config.store);
      SYNCLINE_ASSIGN_OR_RETURN(auto made, preferred.make(own));
      return MakeNative(std::move(made), preferred.capabilities);
    }
  }
  Capabilities capabilities = entry.capabilities;
  capabilities.devices = {DeviceType::kCuda};
  return std::shared_ptr<DeviceBackend>(
      std::make_shared<StagedBackend>(backend, capabilities, config));
}

}  // namespace syncline::group
