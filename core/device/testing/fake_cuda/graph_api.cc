// Captures of streams into graphs, which are done later, as often as wanted.
#include <algorithm>
#include <set>
#include <utility>

#include "core/device/testing/fake_cuda/call.h"

namespace fake_cuda {
CUresult CheckNoCapture(Simulator& simulator) {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const std::weak_ptr<Capture>& weak : simulator.captures) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (capture == nullptr || capture->has_ended) continue;
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool forbids = is_own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                      capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    capture->is_invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult CheckNotCaptured(Simulator& simulator, const StreamPtr& stream) {
  if (stream->capture != nullptr) {
    stream->capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->kind != StreamKind::kLegacy) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& [handle, other] : simulator.streams) {
    if (other->device != stream->device || other->kind != StreamKind::kBlocking) continue;
    if (other->capture == nullptr) continue;
    other->capture->is_invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult Submit(Simulator& simulator, const StreamPtr& stream, std::function<void()> work,
                std::vector<PointPtr> after) {
  if (stream->capture == nullptr) {
    if (const CUresult refused = CheckNotCaptured(simulator, stream)) return refused;
    return simulator.Enqueue(stream, std::move(work), std::move(after));
  }
  Capture& capture = *stream->capture;
  if (capture.is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node>& nodes = capture.graph->nodes;
  nodes.push_back({stream->device, stream->lane, std::move(stream->frontier), std::move(work)});
  stream->frontier = {nodes.size() - 1};
  return CUDA_SUCCESS;
}

CUresult CaptureRecord(Event& event, Stream& stream, bool* is_captured) {
  *is_captured = stream.capture != nullptr;
  if (!*is_captured) return CUDA_SUCCESS;
  if (stream.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event.point = nullptr;
  event.capture = stream.capture;
  event.frontier = stream.frontier;
  return CUDA_SUCCESS;
}

CUresult CaptureWait(const StreamPtr& stream, const Event& event, bool* is_captured) {
  *is_captured = stream->capture != nullptr || event.capture != nullptr;
  if (!*is_captured) return CUDA_SUCCESS;
  if (event.capture == nullptr) {
    // A graph cannot wait for work that is done only once.
    stream->capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event.capture->has_ended) return CUDA_ERROR_INVALID_VALUE;
  if (event.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->kind == StreamKind::kLegacy) {
    event.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture == nullptr) {
    stream->capture = event.capture;
    stream->lane = event.capture->lanes.size();
    event.capture->lanes.push_back(stream);
    stream->frontier = event.frontier;
    return CUDA_SUCCESS;
  }
  if (stream->capture != event.capture) {
    stream->capture->is_invalid = true;
    event.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  std::set<size_t> both(stream->frontier.begin(), stream->frontier.end());
  both.insert(event.frontier.begin(), event.frontier.end());
  stream->frontier.assign(both.begin(), both.end());
  return CUDA_SUCCESS;
}

namespace {

// Whether all work of the capture comes before what its first stream has last.
bool IsJoined(const Capture& capture) {
  const std::vector<Node>& nodes = capture.graph->nodes;
  std::vector<bool> is_before(nodes.size());
  for (const size_t last : capture.lanes[0]->frontier) is_before[last] = true;
  for (size_t node = nodes.size(); node-- > 0;) {
    if (!is_before[node]) return false;
    for (const size_t earlier : nodes[node].after) is_before[earlier] = true;
  }
  return true;
}

CUresult Launch(Simulator& simulator, const StreamPtr& stream, GraphExec& exec) {
  // Launches of one graph are done one after another.
  std::vector<PointPtr> before;
  if (exec.last != nullptr) before.push_back(exec.last);
  if (const CUresult result = simulator.Enqueue(stream, nullptr, std::move(before))) return result;
  const PointPtr start = stream->last;
  std::vector<PointPtr> ends;
  for (const Node& node : exec.graph.nodes) {
    std::vector<PointPtr> after = {start};
    for (const size_t earlier : node.after) after.push_back(ends[earlier]);
    StreamPtr& lane = exec.lanes[node.lane];
    if (const CUresult result = simulator.EnqueueItem(lane, node.work, std::move(after))) {
      return result;
    }
    ends.push_back(lane->last);
  }
  if (const CUresult result = simulator.Enqueue(stream, nullptr, std::move(ends))) return result;
  exec.last = stream->last;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: defines the C functions below.

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  FAKE_CUDA_BEGIN(kInit);
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->kind == StreamKind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (found->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  found->capture = std::make_shared<Capture>();
  found->capture->mode = mode;
  found->capture->thread = std::this_thread::get_id();
  found->capture->lanes = {found};
  found->lane = 0;
  found->frontier.clear();
  auto& captures = simulator.captures;
  captures.erase(std::remove_if(captures.begin(), captures.end(),
                                [](const std::weak_ptr<Capture>& old) { return old.expired(); }),
                 captures.end());
  captures.push_back(found->capture);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  FAKE_CUDA_BEGIN(kInit);
  *graph = nullptr;
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Capture> capture = found->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->lanes[0] != found) {
    capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool is_joined = IsJoined(*capture);
  capture->has_ended = true;
  for (const StreamPtr& lane : capture->lanes) {
    lane->capture = nullptr;
    lane->frontier.clear();
    capture->graph->lane_devices.push_back(lane->device);
  }
  capture->lanes.clear();
  if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!is_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  const uintptr_t handle = simulator.NewHandle();
  simulator.graphs[handle] = capture->graph;
  *graph = reinterpret_cast<CUgraph>(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->capture != nullptr) {
    *status = found->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
  }
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (found->kind != StreamKind::kLegacy) return CUDA_SUCCESS;
  for (const auto& [handle, other] : simulator.streams) {
    if (other->device == found->device && other->kind == StreamKind::kBlocking &&
        other->capture != nullptr) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;  // Asking does no harm to the capture.
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  FAKE_CUDA_BEGIN(kInit);
  static_cast<void>(flags);
  const auto found = simulator.graphs.find(reinterpret_cast<uintptr_t>(graph));
  if (found == simulator.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<GraphExec>();
  made->graph = *found->second;
  for (const int device : made->graph.lane_devices) {
    made->lanes.push_back(std::make_shared<Stream>());
    made->lanes.back()->device = device;
  }
  const uintptr_t handle = simulator.NewHandle();
  simulator.graph_execs[handle] = std::move(made);
  *exec = reinterpret_cast<CUgraphExec>(handle);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  const auto graph = simulator.graph_execs.find(reinterpret_cast<uintptr_t>(exec));
  if (found == nullptr || graph == simulator.graph_execs.end()) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = CheckNotCaptured(simulator, found)) return refused;
  return Launch(simulator, found, *graph->second);
}

CUresult cuGraphDestroy(CUgraph graph) {
  FAKE_CUDA_BEGIN(kInit);
  const bool was_there = simulator.graphs.erase(reinterpret_cast<uintptr_t>(graph)) != 0;
  return was_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  FAKE_CUDA_BEGIN(kInit);
  const auto found = simulator.graph_execs.find(reinterpret_cast<uintptr_t>(exec));
  if (found == simulator.graph_execs.end()) return CUDA_ERROR_INVALID_VALUE;
  for (const StreamPtr& lane : found->second->lanes) {
    lane->is_destroyed = true;
    lane->has_news.notify_all();
  }
  simulator.graph_execs.erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
