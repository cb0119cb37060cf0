// What libfake_cuda.so simulates: devices, their streams, and what is enqueued there.
#ifndef SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_SIMULATOR_H_
#define SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_SIMULATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda_types.h"
#include "core/device/testing/fake_cuda/fake_cuda.h"

namespace fake_cuda {

using namespace syncline::device;  // NOLINT: CUDA's names, which are all of this library.

using Lock = std::unique_lock<std::mutex>;

// A point in the work of a stream, which is reached once, and on which threads wait.
struct Point {
  bool is_reached = false;
  std::condition_variable reached;

  void Reach() {
    is_reached = true;
    reached.notify_all();
  }
  void Await(Lock& lock) {
    reached.wait(lock, [this] { return is_reached; });
  }
};
using PointPtr = std::shared_ptr<Point>;

struct Capture;
struct Graph;

struct Item {
  std::vector<PointPtr> after;
  std::function<void()> work;  // May be empty.
  PointPtr end;
};

// 0 is the least.
inline constexpr int kGreatestPriority = -5;

enum class StreamKind { kLegacy, kBlocking, kNonBlocking };

struct Stream {
  int device = 0;
  StreamKind kind = StreamKind::kNonBlocking;
  int priority = 0;
  std::deque<Item> items;
  std::condition_variable has_news;  // An item, or the end.
  bool has_thread = false;
  bool is_destroyed = false;
  PointPtr last;  // The end of what was enqueued last; null if nothing was.

  std::shared_ptr<Capture> capture;  // Null unless the stream is captured.
  size_t lane = 0;                   // Its number among the captured streams.
  std::vector<size_t> frontier;      // The nodes that the next one comes after.
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  PointPtr point;                    // Null: never recorded, which counts as done.
  std::shared_ptr<Capture> capture;  // Recorded during this capture, after these nodes.
  std::vector<size_t> frontier;
};

// A graph, while it is captured and later.
struct Node {
  int device = 0;
  size_t lane = 0;  // Nodes of one stream have one lane.
  std::vector<size_t> after;
  std::function<void()> work;
};
struct Graph {
  std::vector<Node> nodes;
  std::vector<int> lane_devices;
};
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool is_invalid = false;
  bool has_ended = false;
  std::vector<StreamPtr> lanes;  // The captured streams; the first is the one where it began.
};
struct GraphExec {
  Graph graph;
  std::vector<StreamPtr> lanes;  // Streams of its own that do the nodes.
  PointPtr last;                 // The end of the last launch.
};

enum class MemoryKind { kDevice, kManaged, kPinned, kRegistered };

struct Allocation {
  uint64_t id = 0;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
};

struct Kernel {
  std::string name;
  fake_cuda_kernel function = nullptr;
  std::vector<size_t> sizes;
};

struct Device {
  int physical = 0;        // Which one of the machine, where CUDA_VISIBLE_DEVICES hides some.
  int64_t references = 0;  // Of the primary context.
  CUresult error = CUDA_SUCCESS;
  bool is_held = false;
  StreamPtr legacy;
  std::map<std::thread::id, StreamPtr> per_thread;
};

// The state of the library, which is never destroyed: streams' threads outlive main().
class Simulator {
 public:
  static Simulator& Get();

  // Guards everything below.
  std::mutex mutex;

  bool is_initialized = false;
  int version = 13000;
  int compute_capability = 90;
  std::vector<Device> devices;
  std::map<uintptr_t, StreamPtr> streams;
  std::map<uintptr_t, std::shared_ptr<Event>> events;
  std::map<uintptr_t, Allocation> memory;
  std::map<uintptr_t, std::shared_ptr<Graph>> graphs;
  std::map<uintptr_t, std::shared_ptr<GraphExec>> graph_execs;
  std::map<uintptr_t, bool> libraries;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::map<std::string, int64_t> calls;
  std::map<std::string, std::map<int64_t, CUresult>> faults;  // By function and number of call.
  std::vector<std::weak_ptr<Capture>> captures;
  int64_t pending_items = 0;
  std::condition_variable resumed;  // A device is held no longer.

  // Handles are numbers that are never used again, so that a use after the end is found out.
  uintptr_t NewHandle();

  // The handles that stand for contexts, and back: -1 for what is none.
  CUcontext ContextOf(int device) const;
  int DeviceOf(CUcontext context) const;

  // Enqueues `work` behind the stream's work, and `after`. The default stream's rules hold.
  // While the stream is captured, the graph gets it.
  CUresult Enqueue(const StreamPtr& stream, std::function<void()> work,
                   std::vector<PointPtr> after = {});
  // The same, past the rules and captures: for graphs that run.
  CUresult EnqueueItem(const StreamPtr& stream, std::function<void()> work,
                       std::vector<PointPtr> after);

  // The end of all that `stream` waits for by the rules of the default stream.
  std::vector<PointPtr> EndsBefore(const StreamPtr& stream) const;

  // The end of all that is enqueued on streams of `device`, those of graphs included.
  std::vector<PointPtr> EndsOn(int device) const;

  // The allocation that has all of [address, address + bytes), or null. `is_known` says whether it
  // has the beginning.
  const Allocation* Find(uintptr_t address, size_t bytes, bool* is_known) const;

  std::atomic<int64_t> delay_us{0};
  std::atomic<bool> free_waits{false};

 private:
  Simulator();

  void Serve(const StreamPtr& stream);
  void Delay(Lock& lock);

  uintptr_t last_handle_ = 0x10000;
  std::mt19937_64 random_;
};

// Whether this thread runs a host function or a kernel, where no call is permitted.
extern thread_local bool is_in_host_function;

}  // namespace fake_cuda

#endif  // SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_SIMULATOR_H_
