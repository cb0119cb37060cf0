// Which backend serves which device: "gloo", "cpu:gloo,cuda:nccl".
#ifndef SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_
#define SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "syncline/device.h"

namespace syncline::group {

// The backend of each device type that `spec` serves. A single name serves every device of its
// capabilities. In any case, spaces ignored. ArgumentError that says what would be right if a
// backend is not known or does not serve its device, or a device is not known or named twice.
absl::StatusOr<std::map<DeviceType, std::string>> ParseBackendSpec(absl::string_view spec);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_BACKEND_SPEC_H_
