// Streams: the queues of work of a device, as CUDA has them.
#ifndef SYNCLINE_STREAM_H_
#define SYNCLINE_STREAM_H_

#include <memory>
#include <vector>

#include "syncline/device.h"

namespace syncline {

namespace device {
class Event;  // core/device/device_runtime.h
}  // namespace device

// A stream of a device: work that is enqueued there is done in that order. The caller owns the
// stream, and keeps it until the work that uses it has ended.
struct Stream {
  Device device;
  void* handle = nullptr;  // cudaStream_t, which is CUstream; null: the device's default stream.

  friend bool operator==(const Stream& a, const Stream& b) {
    return a.device == b.device && a.handle == b.handle;
  }
  friend bool operator!=(const Stream& a, const Stream& b) { return !(a == b); }
};

// The stream of `device` behind which this thread's calls on its tensors are enqueued: that of the
// innermost StreamScope for the device, else its default stream.
Stream CurrentStream(const Device& device);

// Makes `stream` the current one of its device on this thread, until the end of the scope. Scopes
// end in the reverse order of their beginning.
//
//   const StreamScope scope({{DeviceType::kCuda, 0}, stream});  // A cudaStream_t of the program.
//   SYNCLINE_RETURN_IF_ERROR(group->AllReduce(gradients));      // Returns once it is enqueued.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();

  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  friend Stream CurrentStream(const Device& device);

  const Stream stream_;
  const StreamScope* const outer_;
};

// Where the tensors of one call are ready.
struct CallerStream {
  Stream stream;                         // The current one of the tensors' device.
  std::shared_ptr<device::Event> ready;  // Recorded on it when the call was made.
  // The same of each other device that has tensors of the call.
  std::vector<std::shared_ptr<device::Event>> others;
};

}  // namespace syncline

#endif  // SYNCLINE_STREAM_H_
