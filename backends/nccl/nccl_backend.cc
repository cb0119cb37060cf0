// Backend "nccl": ranks with CUDA devices, over NCCL.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/common/call_comparison.h"
#include "backends/common/fd_passing.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/common/tls_join.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/fingerprint_board.h"
#include "backends/nccl/fingerprint_store.h"
#include "backends/nccl/group_support.h"
#include "backends/nccl/introduction.h"
#include "backends/nccl/nccl_group.h"
#include "backends/nccl/nccl_library.h"
#include "backends/nccl/operations.h"
#include "backends/nccl/registered_memory.h"
#include "backends/nccl/watchdog.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "core/tensor/segment.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// How long a rank that is destroyed waits for its own work to end.
constexpr absl::Duration kLeaveTime = absl::Seconds(2);

// How long a rank that leaves waits until its communicators have ended: a little longer than
// Communicators::kLeaveTime, after which their orderly end is given up.
constexpr absl::Duration kEndLeaveTime = absl::Seconds(4);

// How long a call that has failed waits for what it has enqueued.
constexpr absl::Duration kEndTime = absl::Milliseconds(500);

// How often a captured call looks whether the others have made it.
constexpr absl::Duration kCapturePause = absl::Microseconds(100);

// The end of work on several streams.
class JoinedEvent final : public device::Event {
 public:
  explicit JoinedEvent(std::vector<std::shared_ptr<device::Event>> events)
      : events_(std::move(events)) {}

  const Device& device() const override { return events_[0]->device(); }
  absl::StatusOr<bool> IsDone() const override {
    for (const auto& event : events_) {
      SYNCLINE_ASSIGN_OR_RETURN(const bool is_done, event->IsDone());
      if (!is_done) return false;
    }
    return true;
  }
  absl::Status EnqueueWait(const Stream& stream) const override {
    for (const auto& event : events_) SYNCLINE_RETURN_IF_ERROR(event->EnqueueWait(stream));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::shared_ptr<device::Event>> events_;
};

absl::optional<Channel> ChannelOf(const Collective& call, int rank) {
  if (call.kind == OpKind::kSend) return Channel{rank, call.peer};
  if (call.kind == OpKind::kRecv) return Channel{call.peer, rank};
  return absl::nullopt;
}

// One rank's part in a group. Thread-safe as Backend asks for.
class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<NcclGroup> group, std::shared_ptr<Communicators> communicators,
              GroupSupport support, std::unique_ptr<FingerprintStore> store)
      : group_(std::move(group)),
        communicators_(std::move(communicators)),
        runtime_(communicators_->runtime()),
        support_(std::move(support)),
        store_(std::move(store)),
        watchdog_(std::make_shared<Watchdog>(group_, communicators_)) {}

  ~NcclBackend() override {
    if (!group_->is_over()) watchdog_->AwaitCalls(kLeaveTime);
    NcclBackend::Abort(BackendError("the backend was destroyed"));
    watchdog_->Stop();
  }

  absl::Status Start() {
    if (store_ != nullptr) SYNCLINE_RETURN_IF_ERROR(store_->Start());
    return watchdog_->Start();
  }

  // Makes the group's communicator for `device` together with all ranks; or takes `split`, if it is
  // not null, for it.
  absl::Status Connect(const Device& device, SplitCommunicator* split, const Deadline& deadline) {
    eager_device_ = device;
    if (split != nullptr) return communicators_->Adopt(*split);
    Collective connect = Collective::Barrier();  // Which shows who has come.
    connect.user_name = "connect";
    CallContext context;
    context.deadline = deadline;
    context.collective = &connect;
    return RunTogether(context, [&](const PublishedCall& call) {
      return communicators_->Get(absl::nullopt, device, call).status();
    });
  }

  bool CanSplit() const override { return eager_device_.has_value(); }

  absl::StatusOr<std::shared_ptr<ChildCommunicator>> Split(const SplitPlace& place,
                                                           const CallContext& context) override {
    std::shared_ptr<SplitCommunicator> split;
    SYNCLINE_RETURN_IF_ERROR(RunTogether(context, [&](const PublishedCall& call) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(split, communicators_->Split(*eager_device_, place, call));
      return absl::OkStatus();
    }));
    return split;
  }

  void Leave(const absl::Status& cause, const Deadline& deadline) override {
    Abort(cause);
    watchdog_->AwaitEnd(Deadline(std::min(deadline.Remaining(), kEndLeaveTime)));
  }

  absl::string_view name() const override { return "nccl"; }

  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override {
    // Before it looks at the group's state: see NcclGroup::Close.
    calls_under_way_.fetch_add(1);
    const absl::Cleanup end = [this] { calls_under_way_.fetch_sub(1); };
    SYNCLINE_RETURN_IF_ERROR(group_->Failure());
    if (collectives.empty()) return Completion();
    SYNCLINE_RETURN_IF_ERROR(Check(collectives));
    CallContext first = context;
    first.collective = collectives.data();
    PublishedCall call(first);
    std::vector<Communicator*> used;
    std::vector<std::shared_ptr<void>> kept;  // What the work uses, until it has ended.
    absl::StatusOr<Completion> completion = Publish(collectives, context, call, used, kept);
    if (completion.ok()) return completion;
    absl::Status status = completion.status();
    if (!IsInterrupted(status)) status = group_->Fail(status, &call.description);
    // NCCL's part is aborted, and what comes after it, such as copies to the tensors, ends by
    // itself: as a rule at once, but what is before it on the caller's stream may take long.
    group_->AwaitQuiet();
    KeepUntilDone(collectives, used, std::move(kept));
    return status;
  }

  // Fails the group if a call of this rank is in flight, since its peers may wait for the rest of
  // it. Otherwise this rank only leaves: the others may go on as long as they do not need it.
  void Abort(const absl::Status& cause) override {
    group_->Close(cause, [this] { return calls_under_way_.load() > 0 || watchdog_->HasCalls(); });
  }

 private:
  // Calls `body` once all ranks have made this call, which moves nothing itself.
  absl::Status RunTogether(const CallContext& context,
                           absl::FunctionRef<absl::Status(const PublishedCall&)> body) {
    calls_under_way_.fetch_add(1);  // As in Run.
    const absl::Cleanup end = [this] { calls_under_way_.fetch_sub(1); };
    SYNCLINE_RETURN_IF_ERROR(group_->Failure());
    PublishedCall call(context);
    absl::Status status =
        group_->Publish(absl::MakeConstSpan(context.collective, 1), context, call);
    if (status.ok()) status = AwaitVerdict(call);
    if (status.ok()) status = body(call);
    if (status.ok()) {
      group_->Finish(call);
      return status;
    }
    return IsInterrupted(status) ? status : group_->Fail(status, &call.description);
  }

  // Waits for what a call that has failed has enqueued on `used`, for kEndTime at most. Keeps its
  // tensors, and `kept`, until that has ended.
  void KeepUntilDone(absl::Span<const Collective> collectives,
                     const std::vector<Communicator*>& used,
                     std::vector<std::shared_ptr<void>> kept) {
    struct Used {
      std::vector<Collective> collectives;
      std::vector<std::shared_ptr<void>> kept;
    };
    const Deadline work(kEndTime);
    std::shared_ptr<Used> held;
    for (const Communicator* const communicator : used) {
      const auto end = runtime_.Record(*communicator->stream);
      if (!end.ok()) continue;  // A device that has failed does nothing any more.
      device::StreamHandle(*end).Wait(work).IgnoreError();
      const absl::StatusOr<bool> is_done = (*end)->IsDone();
      if (!is_done.ok() || *is_done) continue;
      if (held == nullptr) {
        held = std::make_shared<Used>();
        held->kept = std::move(kept);
        held->collectives.assign(collectives.begin(), collectives.end());
        for (Collective& collective : held->collectives) collective.Own();
      }
      if (device::KeepUntil(*end, held).ok()) continue;
      // Nobody can watch: what the device may still write is never given back.
      new std::shared_ptr<const void>(held);
    }
  }

  absl::Status Check(absl::Span<const Collective> collectives) const {
    for (const Collective& collective : collectives) {
      if (collective.kind == OpKind::kBarrier) continue;
      const Device device = collective.tensor_device();
      if (device.type != DeviceType::kCuda) {
        return UnsupportedError(
            absl::StrCat("backend nccl serves tensors of CUDA devices, not of ", ToString(device)));
      }
      SYNCLINE_RETURN_IF_ERROR(CheckServed(collective, support_));
      if (IsP2p(collective.kind) && collective.peer == group_->rank()) {
        return UnsupportedError("backend nccl carries no messages from a rank to itself");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Completion> Publish(absl::Span<const Collective> collectives,
                                     const CallContext& context, PublishedCall& call,
                                     std::vector<Communicator*>& used,
                                     std::vector<std::shared_ptr<void>>& kept) {
    SYNCLINE_RETURN_IF_ERROR(group_->Publish(collectives, context, call));
    const CallerStream* const caller = context.caller;
    const bool has_tensors = std::any_of(
        collectives.begin(), collectives.end(),
        [](const Collective& collective) { return collective.kind != OpKind::kBarrier; });
    bool is_captured = false;
    if (has_tensors) {
      if (caller == nullptr) {
        return BackendError("a call on tensors of a device needs the caller's stream");
      }
      SYNCLINE_ASSIGN_OR_RETURN(is_captured, runtime_.IsCapturing(caller->stream));
      if (is_captured) group_->SetCaptured();
    }
    std::vector<Operations::Part> parts;
    std::vector<const Stream*> streams;  // Of `used`.
    Communicators::UseScope use(*communicators_);
    for (const Collective& collective : collectives) {
      if (collective.kind == OpKind::kBarrier) continue;
      SYNCLINE_ASSIGN_OR_RETURN(Communicator* const communicator,
                                communicators_->Get(ChannelOf(collective, group_->rank()),
                                                    collective.tensor_device(), call));
      const auto same = std::find(used.begin(), used.end(), communicator);
      if (same == used.end()) {
        SYNCLINE_RETURN_IF_ERROR(use.Add(*communicator, call));
        const bool is_first = used.empty();
        used.push_back(communicator);
        const Stream* stream = communicator->stream.get();
        if (is_captured) {
          SYNCLINE_ASSIGN_OR_RETURN(stream, StreamForGraph(*communicator, *caller, is_first));
        }
        streams.push_back(stream);
      }
      if (!is_captured) {
        RegisteredMemory::RegisterTensorsOf(collective, communicators_, *communicator);
      }
      const auto index =
          static_cast<size_t>(std::find(used.begin(), used.end(), communicator) - used.begin());
      parts.push_back({&collective, communicator, streams[index]});
    }
    const int source =
        collectives.size() == 1 && collectives[0].kind == OpKind::kRecv ? collectives[0].peer : 0;
    std::shared_ptr<device::Event> event;
    std::vector<Device> others;  // The devices besides the caller's that have tensors.
    if (!parts.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(event, Enqueue(parts, streams, *caller, call, is_captured, kept));
      if (is_captured) {
        // The graph has the work; what can be compared is compared now.
        SYNCLINE_RETURN_IF_ERROR(event->EnqueueWait(caller->stream));
        SYNCLINE_RETURN_IF_ERROR(AwaitVerdict(call));
        group_->Finish(call);
        return Completion(source);
      }
      for (const auto& other : caller->others) others.push_back(other->device());
    }
    auto pending =
        std::make_shared<PendingCall>(event, source, std::move(call), group_, used,
                                      std::move(others), std::move(kept), watchdog_->is_aborting());
    watchdog_->Add(pending);
    return Completion(std::move(pending));
  }

  // The stream on which work of the communicator is enqueued that a graph gets: not its own, as a
  // stream that is captured takes no other work until the capture ends, and other calls, such as
  // those of another thread, need it meanwhile. Each communicator of a call has another one, as
  // ranks may come to them in different orders: two that both send first would wait for each other.
  absl::StatusOr<const Stream*> StreamForGraph(Communicator& communicator,
                                               const CallerStream& caller, bool is_first) {
    if (is_first && communicator.device == caller.stream.device) return &caller.stream;
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<const Stream> stream,
                              runtime_.MakeStream(communicator.device));
    const Stream* const borrowed = stream.get();
    communicator.captured.push_back(std::const_pointer_cast<Stream>(std::move(stream)));
    return borrowed;
  }

  // Returns the event behind the work.
  absl::StatusOr<std::shared_ptr<device::Event>> Enqueue(absl::Span<const Operations::Part> parts,
                                                         absl::Span<const Stream* const> streams,
                                                         const CallerStream& caller,
                                                         const PublishedCall& call,
                                                         bool is_captured,
                                                         std::vector<std::shared_ptr<void>>& kept) {
    for (const Stream* const stream : streams) {
      SYNCLINE_RETURN_IF_ERROR(caller.ready->EnqueueWait(*stream));
      for (const auto& other : caller.others) {
        SYNCLINE_RETURN_IF_ERROR(other->EnqueueWait(*stream));
      }
    }
    Operations operations(*communicators_, support_, *group_, call, is_captured);
    const absl::Status enqueued = operations.Enqueue(parts);
    kept = operations.TakeKept();  // Also if it fails: a part of it may be enqueued.
    SYNCLINE_RETURN_IF_ERROR(enqueued);
    std::vector<std::shared_ptr<device::Event>> ends;
    for (const Stream* const stream : streams) {
      SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<device::Event> end, runtime_.Record(*stream));
      ends.push_back(std::move(end));
    }
    if (ends.size() == 1) return ends[0];
    return std::make_shared<JoinedEvent>(std::move(ends));
  }

  absl::Status AwaitVerdict(const PublishedCall& call) {
    while (true) {
      const std::optional<absl::Status> verdict = group_->Verdict(call);
      if (verdict.has_value()) return *verdict;
      SYNCLINE_RETURN_IF_ERROR(group_->Check(call));
      SYNCLINE_RETURN_IF_ERROR(communicators_->CheckInterrupted(call));
      absl::SleepFor(kCapturePause);
    }
  }

  const std::shared_ptr<NcclGroup> group_;
  const std::shared_ptr<Communicators> communicators_;
  device::DeviceRuntime& runtime_;
  const GroupSupport support_;
  const std::unique_ptr<FingerprintStore> store_;
  const std::shared_ptr<Watchdog> watchdog_;
  std::atomic<int> calls_under_way_{0};
  std::optional<Device> eager_device_;  // Whose communicator was made with the group.
};

bool AreOnOneHost(const backends::PeerTable& peers) {
  for (int rank = 0; rank < peers.size(); ++rank) {
    if (peers.host_identity(rank) != peers.host_identity(0)) return false;
  }
  return true;
}

// What was split off another group's communicator for this group; null if nothing was, or if that
// is on another device than this group's.
SplitCommunicator* SplitOf(const BackendConfig& config) {
  auto* const split = dynamic_cast<SplitCommunicator*>(config.communicator.get());
  return split != nullptr && config.device == split->device() ? split : nullptr;
}

// What this rank tells the others to join.
absl::StatusOr<std::string> IntroductionOf(
    const BackendConfig& config, const NcclApi& api, device::DeviceRuntime& runtime,
    const absl::StatusOr<tensor::Segment>& segment,
    const absl::StatusOr<std::unique_ptr<backends::FdServer>>& server) {
  Introduction own;
  own.compares = config.mismatch_check == MismatchCheck::kOn;
  own.is_eager = config.device.has_value();
  own.has_split = own.is_eager && SplitOf(config) != nullptr;
  if (own.is_eager && (config.device->type != DeviceType::kCuda || config.device->index < 0 ||
                       config.device->index >= runtime.device_count())) {
    return ArgumentError(absl::StrCat(
        "device_id ", ToString(*config.device),
        " is none of the devices of this process, cuda:0 to cuda:", runtime.device_count() - 1));
  }
  if (config.rank == 0) {
    SYNCLINE_RETURN_IF_ERROR(segment.status());
    SYNCLINE_RETURN_IF_ERROR(server.status());
    own.endpoint = (*server)->endpoint();
  }
  own.support = RankSupport::OfThisProcess(api, runtime);
  return own.Serialize();
}

// OK if all ranks connect for a device at once, or none does.
absl::Status CheckAllEagerOrNone(const std::vector<Introduction>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].is_eager == ranks[0].is_eager) continue;
    const size_t with = ranks[0].is_eager ? 0 : rank;
    return WithRanks(
        MismatchError(absl::StrCat("rank ", with, " was given a device_id and rank ", rank - with,
                                   " was not: give one to all ranks, or to none")),
        {0, static_cast<int>(rank)});
  }
  return absl::OkStatus();
}

absl::StatusOr<tensor::Segment> MakeBoard(int size) {
  const size_t bytes = FingerprintBoard::BytesFor(size);
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment, tensor::Segment::Create(bytes));
  SYNCLINE_RETURN_IF_ERROR(segment.Reserve(0, bytes));
  return segment;
}

absl::StatusOr<std::shared_ptr<Backend>> MakeNccl(const BackendConfig& config) {
  const absl::StatusOr<const NcclApi*> api = LoadNccl();
  const absl::StatusOr<device::DeviceRuntime*> runtime = device::DeviceRuntime::Get();
  absl::StatusOr<std::unique_ptr<backends::FdServer>> server;
  absl::StatusOr<tensor::Segment> segment = absl::UnavailableError("rank 0 has it");
  if (config.rank == 0) {
    segment = MakeBoard(config.size);
    server = backends::FdServer::Open();
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      backends::PeerTable peers,
      backends::JoinPlain("nccl", *config.store, config.rank, config.size,
                          // JoinPlain publishes the reason where a rank cannot join.
                          !api.ok() ? api.status()
                          : !runtime.ok()
                              ? runtime.status()
                              : IntroductionOf(config, **api, **runtime, segment, server),
                          config.deadline, config.check_peers));
  std::vector<Introduction> ranks;
  std::vector<RankSupport> supports;
  std::vector<MismatchCheck> checks;
  for (int rank = 0; rank < config.size; ++rank) {
    ranks.push_back(Introduction::Parse(peers.payload(rank)));
    supports.push_back(ranks.back().support);
    checks.push_back(ranks.back().compares ? MismatchCheck::kOn : MismatchCheck::kOff);
  }
  SYNCLINE_RETURN_IF_ERROR(backends::CheckAllCompareOrNone(checks));
  SYNCLINE_RETURN_IF_ERROR(CheckAllEagerOrNone(ranks));
  GroupSupport support(supports, peers);
  backends::PeerProcesses processes(peers);
  std::optional<tensor::Segment> memory;
  const bool is_shared = AreOnOneHost(peers);
  if (!is_shared) {
    // Zeros, and no memory until a page is used.
    SYNCLINE_ASSIGN_OR_RETURN(memory,
                              tensor::Segment::Create(FingerprintBoard::BytesFor(config.size)));
  } else if (config.rank == 0) {
    SYNCLINE_RETURN_IF_ERROR(
        (*server)->Serve(segment->descriptor(), config.size, config.deadline, &processes));
    memory = *std::move(segment);
  } else {
    auto descriptor =
        backends::ReceiveFd(ranks[0].endpoint, config.rank, config.deadline, &processes);
    if (!descriptor.ok()) {
      SYNCLINE_RETURN_IF_ERROR(peers.CheckAlive());  // Explains more, if rank 0 has died.
      return descriptor.status();
    }
    SYNCLINE_ASSIGN_OR_RETURN(
        memory,
        tensor::Segment::Map(descriptor->release(), FingerprintBoard::BytesFor(config.size)));
  }
  // Nobody else can be given it.
  memory->CloseDescriptor();
  auto group = std::make_shared<NcclGroup>(*std::move(memory), std::move(peers),
                                           std::move(processes), config.mismatch_check);
  auto communicators = std::make_shared<Communicators>(**api, **runtime, *group, config.store);
  std::unique_ptr<FingerprintStore> store;
  if (!is_shared) store = std::make_unique<FingerprintStore>(config.store, group);
  auto backend = std::make_shared<NcclBackend>(std::move(group), std::move(communicators),
                                               std::move(support), std::move(store));
  SYNCLINE_RETURN_IF_ERROR(backend->Start());
  if (config.device.has_value()) {
    // All ranks know who has one, so they decide alike.
    const bool all_have_split = std::all_of(
        ranks.begin(), ranks.end(), [](const Introduction& rank) { return rank.has_split; });
    SYNCLINE_RETURN_IF_ERROR(backend->Connect(
        *config.device, all_have_split ? SplitOf(config) : nullptr, config.deadline));
  }
  return backend;
}

absl::Status CheckNccl() {
  SYNCLINE_RETURN_IF_ERROR(device::DeviceRuntime::Get().status());
  return LoadNccl().status();
}

Capabilities NcclCapabilities() {
  Capabilities capabilities = Capabilities::All();
  // With NCCL 2.24 or later; see CheckServed.
  capabilities.reduce_dtypes.insert(DType::kFloat8E4M3);
  capabilities.reduce_dtypes.insert(DType::kFloat8E5M2);
  capabilities.devices = {DeviceType::kCuda};
  capabilities.is_stream_ordered = true;
  return capabilities;
}

const BackendRegistry::Registration kNccl("nccl", {NcclCapabilities(), &MakeNccl, &CheckNccl});

}  // namespace
}  // namespace syncline::nccl
