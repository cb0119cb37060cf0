// NCCL's communicators of one rank of a group: how they are made, used and ended.
#ifndef SYNCLINE_BACKENDS_NCCL_COMMUNICATOR_H_
#define SYNCLINE_BACKENDS_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "backends/nccl/fingerprint_board.h"
#include "backends/nccl/nccl_api.h"
#include "backends/nccl/nccl_group.h"
#include "core/device/device_runtime.h"
#include "syncline/backend.h"
#include "syncline/device.h"
#include "syncline/store.h"
#include "syncline/stream.h"

namespace syncline::nccl {

// A communicator of NCCL on one device, and the stream on which its work goes. Made by
// Communicators, which owns it; its fields stay once it is ready. NCCL allows one thread at a time
// in its functions, ncclCommAbort and ncclCommGetAsyncError excepted: that which has a UseScope.
struct Communicator {
  // Which one: between all ranks of the group, or between the ends of a channel, where the sender
  // is rank 0. A rank that uses several devices has one of the former for each of them, with the
  // number of NcclGroup::NumberOf, by which ranks compare their calls; and one for each channel, on
  // the device of its first message, or the one that it used last when the other end asked for it.
  absl::optional<Channel> channel;
  int number = 0;
  Device device;

  int rank = 0;  // In the communicator.
  int size = 1;
  NcclComm comm = nullptr;
  std::shared_ptr<const Stream> stream;

  // Memory for what is gathered before it is reduced or copied. It is used in the stream's order,
  // and replaced by a larger one: whoever enqueues work on it keeps it until that has ended.
  std::shared_ptr<void> scratch;
  size_t scratch_bytes = 0;
  std::vector<std::shared_ptr<void>> captured;  // What graphs use in its place.

  // Guarded by the mutex of Communicators: whether a thread has a UseScope of it, and what that
  // thread is to deregister.
  bool is_in_use = false;
  struct Deregistration {
    void* handle;
    std::shared_ptr<const void> memory;  // Which is not given back before.
  };
  std::vector<Deregistration> deregistrations;
  // Likewise guarded: the handles of ncclCommRegister that NCCL still has.
  std::vector<void*> registered;

  enum class State { kMaking, kReady, kFailed } state = State::kMaking;
};

// "NCCL's ncclAllReduce failed: ...", with what NCCL says of its last error.
absl::Status NcclError(const NcclApi& api, absl::string_view function, NcclResult result);

// A communicator that was split off one of another group, and which nobody uses yet: it is aborted
// unless it is released.
class SplitCommunicator final : public ChildCommunicator {
 public:
  SplitCommunicator(const NcclApi& api, device::DeviceRuntime& runtime, const Device& device,
                    NcclComm comm)
      : api_(api), runtime_(runtime), device_(device), comm_(comm) {}
  ~SplitCommunicator() override;

  const Device& device() const { return device_; }
  NcclComm Release() { return std::exchange(comm_, nullptr); }

 private:
  const NcclApi& api_;
  device::DeviceRuntime& runtime_;
  const Device device_;
  NcclComm comm_;
};

// Makes the communicators when a call first needs them. All of them are non-blocking: NCCL's
// functions return soon, and this waits for what they go on with until the call must end.
//
// Thread-safe. Borrows the group, which outlives it, and shares the store.
class Communicators {
 public:
  Communicators(const NcclApi& api, device::DeviceRuntime& runtime, NcclGroup& group,
                std::shared_ptr<Store> store)
      : api_(api), runtime_(runtime), group_(group), store_(std::move(store)) {}

  const NcclApi& api() const { return api_; }
  device::DeviceRuntime& runtime() const { return runtime_; }

  // That of the group on `device`, or that of a channel, which may be on another one. Waits, the
  // first time, until the others make theirs: errors are those of NcclGroup::Check, of NCCL, and of
  // an interrupt, and fail the group.
  absl::StatusOr<Communicator*> Get(absl::optional<Channel> channel, const Device& device,
                                    const PublishedCall& call);

  // Takes over a communicator between all ranks of the group.
  absl::Status Adopt(SplitCommunicator& split);

  // Splits the communicator of the group on `device`, which is ready, together with all ranks; null
  // for a rank that gets no color. Errors as of Get.
  absl::StatusOr<std::shared_ptr<SplitCommunicator>> Split(const Device& device,
                                                           const SplitPlace& place,
                                                           const PublishedCall& call);

  // Makes those that other ranks ask for, in threads, once this rank has used a device. A rank that
  // dies meanwhile fails the group, and so does one whose call would have ended.
  void ServeRequests();

  // A scope in which functions of NCCL may be called: no communicator is aborted meanwhile. The
  // code in it does not wait.
  class CallScope;

  // A scope in which this thread alone uses the communicators that it has added.
  class UseScope;

  // Keeps a handle that ncclCommRegister has returned: what is still registered when the ranks
  // leave is deregistered before the communicator ends.
  void AddRegistered(NcclComm comm, void* handle);

  // Has NCCL deregister `handle` of `comm` in `device`'s context: now, or at the end of the
  // UseScope in which the communicator is. Not if the communicators have ended: LeaveAll, or NCCL
  // at an abort, has done so.
  // Does not wait. `memory` is let go of afterwards.
  void Deregister(NcclComm comm, void* handle, std::shared_ptr<const void> memory);

  // Waits until NCCL has enqueued what it was told to; errors as of Get.
  absl::Status Settle(absl::Span<Communicator* const> used, const PublishedCall& call);

  // The error that NCCL has found in one of them meanwhile.
  absl::Status AsyncError(absl::Span<Communicator* const> used);

  // Ends all of them, together, behind their work: NCCL delivers what that has handed over. Where
  // this does not succeed within kLeaveTime, or the group fails or a rank is lost meanwhile, they
  // are aborted. Waits, so call it from a thread that may, once this rank's calls have ended.
  void LeaveAll();

  static constexpr absl::Duration kLeaveTime = absl::Seconds(3);

  // Ends all of them, together, and their work. NCCL may take its time: call it from a thread that
  // may. Further calls, and communicators that are made meanwhile, end too.
  void AbortAll();

  // The InterruptedError of this thread, which fails the group; else OK. For waits of `call`.
  absl::Status CheckInterrupted(const PublishedCall& call);

  // Whether the threads of ServeRequests have ended. They do soon once the group is over.
  bool JoinServers();

 private:
  using Checker = std::function<absl::Status()>;

  // The end of AbortAll and LeaveAll: of all that there are. Only the first call returns true.
  bool BeginEnd();
  std::vector<NcclComm> TakeAll();
  Device DeviceOfAny();  // Of one that there is.
  // NCCL (2.27 to 2.30 at least) frees what connects a communicator with its peers before it asks
  // them to unmap memory that is still registered, so that ncclCommDestroy may end the process.
  void DeregisterAll();
  absl::Status Finalize(const std::vector<NcclComm>& all);
  void AbortNow(const std::vector<NcclComm>& all);

  absl::Status Make(Communicator& made, const Checker& check);
  absl::StatusOr<NcclUniqueId> ExchangeId(const Communicator& made, const Checker& check);
  absl::Status AwaitReady(Communicator& made, const Checker& check);
  // Waits until this thread may use the communicator; errors as of Get.
  absl::Status BeginUse(Communicator& communicator, const PublishedCall& call);
  // Deregisters what there is to be, then lets other threads use it.
  void EndUse(Communicator& communicator);
  // Returns a new one, to be made by the caller, if there is none.
  Communicator* Find(const absl::optional<Channel>& channel, const Device& device, bool& is_new)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NcclApi& api_;
  device::DeviceRuntime& runtime_;
  NcclGroup& group_;
  const std::shared_ptr<Store> store_;

  // Held to read by calls of NCCL, and to write by AbortAll.
  absl::Mutex calls_mutex_;
  bool is_aborted_ ABSL_GUARDED_BY(calls_mutex_) = false;

  absl::Mutex mutex_;
  std::list<Communicator> all_ ABSL_GUARDED_BY(mutex_);
  absl::optional<Device> last_device_ ABSL_GUARDED_BY(mutex_);  // That a call has used.
  // What is being split off. NCCL writes a handle when the parent has done its part.
  std::list<Communicator> children_ ABSL_GUARDED_BY(mutex_);
  struct Server {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> has_ended;
  };
  std::vector<Server> servers_ ABSL_GUARDED_BY(mutex_);
};

class Communicators::CallScope {
 public:
  CallScope(Communicators& communicators, const Device& device) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : communicators_(communicators),
        context_(communicators.runtime_, device) {
    communicators_.calls_mutex_.ReaderLock();
  }
  ~CallScope() ABSL_NO_THREAD_SAFETY_ANALYSIS { communicators_.calls_mutex_.ReaderUnlock(); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // OK if NCCL may be called.
  absl::Status status() const;

 private:
  Communicators& communicators_;
  const device::DeviceRuntime::ContextScope context_;
};

class Communicators::UseScope {
 public:
  explicit UseScope(Communicators& communicators) : communicators_(communicators) {}
  ~UseScope() {
    for (Communicator* const communicator : used_) communicators_.EndUse(*communicator);
  }
  UseScope(const UseScope&) = delete;
  UseScope& operator=(const UseScope&) = delete;

  // Waits while another thread uses the communicator, which is ready and was not added before;
  // errors as of Get.
  absl::Status Add(Communicator& communicator, const PublishedCall& call) {
    const absl::Status status = communicators_.BeginUse(communicator, call);
    if (status.ok()) used_.push_back(&communicator);
    return status;
  }

 private:
  Communicators& communicators_;
  std::vector<Communicator*> used_;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_COMMUNICATOR_H_
