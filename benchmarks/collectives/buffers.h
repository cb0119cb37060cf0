// The memory of a call, and whether the call did what it should.
#ifndef SYNCLINE_BENCHMARKS_COLLECTIVES_BUFFERS_H_
#define SYNCLINE_BENCHMARKS_COLLECTIVES_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/collectives/harness.h"

namespace syncline::benchmarks {

// "all_reduce", ... INVALID_ARGUMENT for others.
absl::StatusOr<Operation> OperationOf(absl::string_view name);

// What one rank needs for an operation on `bytes` in all. Element i of rank r's input is
// r + 1 + i % 7 until it is overwritten.
class Buffers {
 public:
  // The memory is that of `system`.
  Buffers(Operation operation, int64_t bytes, int rank, int size, System& system);
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  const Call& call() const { return call_; }

  // After the first call. Looks at some hundred elements. INTERNAL names one that is wrong.
  absl::Status Check() const;

 private:
  // What element i of the output must be.
  float Expected(int64_t i) const;
  int64_t OutputCount() const;

  const int rank_, size_;
  Call call_;
  std::shared_ptr<void> input_, output_;
};

}  // namespace syncline::benchmarks

#endif  // SYNCLINE_BENCHMARKS_COLLECTIVES_BUFFERS_H_
