// Device: where a tensor's bytes are.
#ifndef SYNCLINE_DEVICE_H_
#define SYNCLINE_DEVICE_H_

#include <string>

namespace syncline {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  // Which one of its type; always 0 for the CPU.

  friend bool operator==(const Device& a, const Device& b) {
    return a.type == b.type && a.index == b.index;
  }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }
};

// "cpu", "cuda:1".
std::string ToString(const Device& device);

}  // namespace syncline

#endif  // SYNCLINE_DEVICE_H_
