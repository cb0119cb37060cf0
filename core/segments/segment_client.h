// SegmentClient: makes and maps named segments, and tells their manager.
#ifndef SYNCLINE_CORE_SEGMENTS_SEGMENT_CLIENT_H_
#define SYNCLINE_CORE_SEGMENTS_SEGMENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/segments/protocol.h"
#include "core/segments/segment_name.h"
#include "core/tensor/segment.h"
#include "syncline/deadline.h"
#include "syncline/tensor.h"

namespace syncline::segments {

// A segment's name in a message, and the number of the message's sender, for its manager.
struct Carried {
  std::string name;
  ClientId sender = 0;
};

// Of the process. Segments are files in /dev/shm, whose names travel in messages; their manager
// removes them when nobody maps them and no message carries them. A mapping takes no descriptor,
// and outlives the name. A child of fork has connections of its own. Thread-safe.
//
// What a manager must know before a message is sent has been given to the kernel when a call
// returns: it survives this process. A manager that does not take it for 10 s is a TimeoutError.
class SegmentClient {
 public:
  static SegmentClient& Get();

  // New segments are of this manager from now on. NetworkError if it does not serve.
  absl::Status Use(const std::string& manager);
  // The manager of new segments; empty if there is none that serves.
  std::string manager();

  // A new segment with these parts (Segment::Fill), that a message carries. BackendError with sizes
  // if there is no room; NetworkError if the manager has ended.
  absl::StatusOr<Carried> Write(size_t size, absl::Span<const tensor::Segment::Part> parts);
  // A new segment that this process maps, all zeros. Errors as of Write.
  absl::StatusOr<Tensor> Make(size_t size);

  // The segment that holds these bytes, and where they are in it; nothing if none does that has a
  // name still: it has lost it if its manager was killed, or this is a child of fork and the parent
  // has freed it since.
  struct Place {
    std::string name;
    size_t offset;
    size_t size;
  };
  std::optional<Place> Find(const void* data, size_t bytes);

  // A message carries a segment that this process maps; or it was not sent after all.
  absl::StatusOr<Carried> Carry(const std::string& name);
  void Drop(const Carried& carried);

  // Maps a segment that a message of process `pid` has carried, once for each process. NetworkError
  // that names the process if the segment is gone.
  absl::StatusOr<Tensor> Receive(const Carried& carried, int pid, size_t size);
  // The message was not looked at.
  void Discard(const Carried& carried);

  // The process ends of its own accord: its messages are to be received still.
  void Leave();

 private:
  class Reference;

  struct Connection {
    base::UniqueFd socket;
    ClientId client = 0;
    std::deque<Request> unsent;
  };

  SegmentClient();

  // The connection to a manager, null if it does not serve. Under the mutex, as all that follow.
  Connection* Connect(const std::string& manager, const Deadline& deadline);
  static bool Serves(const Connection& connection);
  // Waits until the kernel has the request, and all before it.
  static absl::Status Send(Connection& connection, const Request& request,
                           const Deadline& deadline);
  // Does not wait.
  static void SendLater(Connection& connection, const Request& request);
  static bool Flush(Connection& connection);
  // Tells a manager that this process is connected to.
  void Tell(Request::Kind kind, absl::string_view name, ClientId sender);
  absl::StatusOr<SegmentName> NewName(Request::Kind kind, const Deadline& deadline);
  // Whether this process uses the segment, which has its name; a child of fork asks the manager
  // first. Takes the mutex.
  bool Adopt(Reference& reference);
  void Release(const std::string& name);

  std::mutex mutex_;  // Of a kind that a fork may find locked. Guards all below.
  std::map<std::string, std::unique_ptr<Connection>> connections_;  // By manager.
  std::string manager_;
  uint64_t last_number_ = 0;
};

}  // namespace syncline::segments

#endif  // SYNCLINE_CORE_SEGMENTS_SEGMENT_CLIENT_H_
