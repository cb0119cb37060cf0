// Streams of devices, as Python's libraries have them: on which the elements of an array are ready,
// and behind which a call is enqueued. All functions require the GIL.
#ifndef SYNCLINE_PYTHON_EXTENSION_STREAMS_H_
#define SYNCLINE_PYTHON_EXTENSION_STREAMS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "syncline/device.h"
#include "syncline/stream.h"

namespace syncline::python {

// The streams of a method's call: the first that is added of each device is the call's own.
class CallStreams {
 public:
  CallStreams() : outer_(innermost_) { innermost_ = this; }
  ~CallStreams() { innermost_ = outer_; }

  CallStreams(const CallStreams&) = delete;
  CallStreams& operator=(const CallStreams&) = delete;

  // That of the method that this thread is in; null outside of the extension's methods.
  static CallStreams* Innermost() { return innermost_; }

  // The call's stream of `device`.
  std::optional<Stream> Find(const Device& device) const;

  using Streams = absl::InlinedVector<Stream, 1>;
  struct All {
    Streams own;     // One of each device, behind which the call is enqueued.
    Streams others;  // Which wait for those when the call has returned.
  };
  void Add(const Stream& stream);
  // What has been added, for the call that is made with it.
  All Take();

 private:
  static inline thread_local CallStreams* innermost_ = nullptr;

  CallStreams* const outer_;
  All all_;
};

// How the library of an array tells its current stream of a device.
struct StreamSource {
  // DLPack's C exchange API has such a function.
  using Function = int (*)(int32_t device_type, int32_t device_id, void** stream);
  enum class Library { kOther, kTorch, kCupy };  // kOther: the default stream, if no function.

  Function function = nullptr;
  Library library = Library::kOther;
};

StreamSource StreamSourceOf(pybind11::handle array);

// The stream of `device` behind which calls on arrays of `source` are enqueued: what
// syncline.stream has set, else the library's current one. The source is remembered.
Stream StreamFor(const Device& device, const StreamSource& source);

// The stream of `device` on which memory of Syncline's own is ready: what syncline.stream has set,
// else this thread's current one.
Stream ViewStream(const Device& device);

// The elements of an argument of the current call are ready on `ready`: the call's stream of the
// device, which becomes `ready` if there is none yet, waits for it. Raises the device's error.
void AddArgumentStream(const Stream& ready);

// Adds to the current call the streams of all devices and libraries that arrays have come from.
void AddKnownStreams();

// Makes `to` wait for what has been enqueued on `from`.
absl::Status Join(const Stream& from, const Stream& to);

// Makes the others wait for the own stream of their device. Raises the device's error.
void JoinOthers(const CallStreams::All& streams);

// DLPack's and __cuda_array_interface__'s number of a stream, and back.
int64_t StreamNumber(const Stream& stream);
Stream StreamOfNumber(const Device& device, int64_t number);

// Runs call() with `streams` as the current ones of this thread. Needs no GIL.
template <typename F>
auto OnStreams(absl::Span<const Stream> streams, F& call) -> decltype(call()) {
  if (streams.empty()) return call();
  const StreamScope scope(streams.front());
  return OnStreams(streams.subspan(1), call);
}

// Adds what syncline.stream needs.
void DefineStreams(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_STREAMS_H_
