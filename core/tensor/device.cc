#include "syncline/device.h"

#include "absl/strings/str_cat.h"

namespace syncline {

std::string ToString(const Device& device) {
  switch (device.type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return absl::StrCat("cuda:", device.index);
  }
  return "unknown device";
}

}  // namespace syncline
