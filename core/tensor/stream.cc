#include "syncline/stream.h"

#include "syncline/check.h"

namespace syncline {
namespace {

// The innermost scope of this thread.
thread_local const StreamScope* innermost = nullptr;

}  // namespace

StreamScope::StreamScope(const Stream& stream) : stream_(stream), outer_(innermost) {
  innermost = this;
}

StreamScope::~StreamScope() {
  SYNCLINE_DCHECK(innermost == this);
  innermost = outer_;
}

Stream CurrentStream(const Device& device) {
  for (const StreamScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->stream_.device == device) return scope->stream_;
  }
  return {device};
}

}  // namespace syncline
