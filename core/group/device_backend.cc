#include "core/group/device_backend.h"

#include <utility>

#include "core/group/native_backend.h"
#include "core/group/negotiated_backend.h"
#include "core/group/staged_backend.h"
#include "syncline/backend_registry.h"

namespace syncline::group {

std::shared_ptr<DeviceBackend> MakeDeviceBackend(const BackendRegistry::Entry& entry,
                                                 const std::shared_ptr<Backend>& backend,
                                                 const BackendConfig& config) {
  Capabilities capabilities = entry.capabilities;
  capabilities.devices = {DeviceType::kCuda};
  if (entry.capabilities.devices.count(DeviceType::kCuda) != 0) {
    return std::make_shared<NativeBackend>(backend, capabilities);
  }
  if (entry.capabilities.staged_devices.count(DeviceType::kCuda) == 0) return nullptr;
  auto staged = std::make_shared<StagedBackend>(backend, capabilities, config);
  if (entry.cuda_backend.empty() || !BackendRegistry::Has(entry.cuda_backend)) return staged;
  return std::make_shared<NegotiatedBackend>(entry.cuda_backend, config, std::move(staged));
}

}  // namespace syncline::group
