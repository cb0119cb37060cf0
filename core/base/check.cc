#include "syncline/check.h"

#include <cstdio>
#include <cstdlib>

namespace syncline::internal {

// Not by Log: the caller may hold any lock, and the process ends here.
void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: SYNCLINE_DCHECK(%s) failed: this is a bug of Syncline\n", file, line,
               condition);
  std::abort();
}

}  // namespace syncline::internal
