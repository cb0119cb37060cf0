// Which backend serves which device: "gloo", "cpu:gloo,cuda:nccl".
#ifndef SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_
#define SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "syncline/device.h"

namespace syncline::group {

using Backends = std::map<DeviceType, std::string>;

// The backend of each device type that `spec` serves. A single name serves every device of its
// capabilities. In any case, spaces ignored. ArgumentError that says what would be right if a
// backend is not known or does not serve its device, or a device is not known or named twice.
absl::StatusOr<Backends> ParseBackendSpec(absl::string_view spec);

// The same text for all spellings of one spec: "cpu:gloo,cuda:nccl", without spaces, or "gloo"
// where one backend serves all devices.
std::string SerializeBackendSpec(const Backends& backends);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_
