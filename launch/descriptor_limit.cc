#include "launch/descriptor_limit.h"

#include <optional>

namespace syncline::launch {
namespace {

std::optional<rlimit>& Inherited() {
  static std::optional<rlimit> limit;
  return limit;
}

rlimit Current() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

void RaiseDescriptorLimit() {
  const rlimit before = InheritedDescriptorLimit();
  Inherited() = before;
  const rlimit raised = {before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
}

rlimit InheritedDescriptorLimit() { return Inherited().value_or(Current()); }

}  // namespace syncline::launch
