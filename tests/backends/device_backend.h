// A backend of devices as one of the CPU's, so that the suite of all backends serves it.
#ifndef SYNCLINE_TESTS_BACKENDS_DEVICE_BACKEND_H_
#define SYNCLINE_TESTS_BACKENDS_DEVICE_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"

namespace syncline {

// The backend `name` of the registry, by which each call's tensors go through memory of a device:
// that of number `rank`, of those that there are. They are copied there on a stream, behind which
// the call is made; what it has made of them is copied back, on a stream that waits for it, when
// somebody learns that it has succeeded. A call that fails changes nothing.
absl::StatusOr<std::shared_ptr<Backend>> MakeOnDevices(const std::string& name,
                                                       const BackendConfig& config);

// Registers it under `as`.
BackendRegistry::Registration RegisterOnDevices(const std::string& name, const std::string& as,
                                                Capabilities capabilities);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_DEVICE_BACKEND_H_
