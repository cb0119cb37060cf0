// SYNCLINE_DCHECK: checks what a function requires of its callers, in tests and debug builds.
#ifndef SYNCLINE_CHECK_H_
#define SYNCLINE_CHECK_H_

namespace syncline::internal {

// Writes the message to stderr and aborts the process.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace syncline::internal

// Aborts the process, with file and line, if `condition` is false. It stands for a "Requires" in a
// header: a violation is a bug of the caller. What a user or another process can get wrong is an
// absl::Status instead.
//
//   // Requires index < size().
//   T& at(size_t index) {
//     SYNCLINE_DCHECK(index < size());
//     return data_[index];
//   }
//
// On where SYNCLINE_DCHECK_IS_ON is defined, which .bazelrc does for `bazel test` and for
// --config=debug. Off in what `bazel build` and `bazel run` make: the condition is compiled, but
// not evaluated, so it may not have side effects. Any thread may use it.
#ifdef SYNCLINE_DCHECK_IS_ON
#define SYNCLINE_DCHECK(condition)    \
  ((condition) ? static_cast<void>(0) \
               : ::syncline::internal::CheckFailed(#condition, __FILE__, __LINE__))
#else
#define SYNCLINE_DCHECK(condition) static_cast<void>(true || (condition))
#endif

#endif  // SYNCLINE_CHECK_H_
