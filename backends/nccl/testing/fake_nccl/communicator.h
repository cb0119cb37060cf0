// One rank of a communicator of the stand-in for NCCL.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_COMMUNICATOR_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/nccl/nccl_api.h"
#include "backends/nccl/testing/fake_nccl/operations.h"
#include "backends/nccl/testing/fake_nccl/segment.h"
#include "core/device/cuda_types.h"

namespace fake_nccl {

// Keeps the text for ncclGetLastError, and returns `result`.
syncline::nccl::NcclResult Fail(syncline::nccl::NcclResult result, const std::string& message);
// That text, which lives until the thread's next call.
const char* LastError();

// A reduction of a communicator: a built-in one, or one that the program has made.
struct MadeReduction {
  syncline::nccl::NcclDataType dtype;
  std::shared_ptr<const Scalar> scalar;
};

// Thread-safe as NCCL's are, and more: Abort may be called while any other function runs.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Not initialised yet, on the device that is current.
  static syncline::nccl::NcclResult Make(int rank, int ranks, bool is_blocking,
                                         std::shared_ptr<Communicator>* made);
  // On the device of `parent`.
  static std::shared_ptr<Communicator> MakeFrom(const Communicator& parent, int rank, int ranks,
                                                bool is_blocking);
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Joins the others. Ends early if this one is aborted, or `other`, unless that is null.
  syncline::nccl::NcclResult Init(const syncline::nccl::NcclUniqueId& id,
                                  const Communicator* other);
  // Before Init, for ranks that learn it late.
  void SetPlace(int rank, int ranks);

  // Enqueues the operations, which are one group, on their streams.
  syncline::nccl::NcclResult Enqueue(std::vector<Operation> operations);

  // Sends `data` to the `members`, of which this rank is one, and receives theirs, all of one size,
  // in their order. Ends early if this one is aborted, or `other`, unless that is null.
  syncline::nccl::NcclResult Exchange(const std::vector<int>& members,
                                      const std::vector<unsigned char>& data,
                                      const Communicator* other,
                                      std::vector<std::vector<unsigned char>>* received);

  // Waits until everything that was enqueued has ended.
  syncline::nccl::NcclResult Finish();
  // The same, and until the others have taken what these have handed over, or have ended.
  syncline::nccl::NcclResult Finalize();
  // Ends the operations that run or are enqueued, and waits until none runs. What is made of the
  // communicator, by Exchange, still can be.
  void Revoke();
  // Ends everything, and waits until none of it runs.
  void Abort();

  // What ncclCommGetAsyncError says.
  syncline::nccl::NcclResult state();
  void SetState(syncline::nccl::NcclResult state);
  // An error, with which no operation goes on.
  void SetAsyncError(syncline::nccl::NcclResult error);
  void SetStalled(bool is_stalled);
  // Whether operations can be enqueued; the error if not.
  syncline::nccl::NcclResult CheckReady();

  // NCCL allows one thread at a time in the functions that work on a communicator. False if another
  // one is in one of them, or in a group that has one; else Leave follows.
  bool Enter();
  void Leave();

  // Runs `body` on a thread of this communicator's, which sets the state at its end: it is
  // kNcclInProgress until then.
  void RunInBackground(std::function<void()> body);
  // Waits for it.
  void JoinBackground();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  bool is_blocking() const { return is_blocking_; }
  bool is_aborted() const { return is_aborted_.load(); }

  // Reductions of the program, by their numbers.
  syncline::nccl::NcclRedOp AddReduction(MadeReduction reduction);
  bool RemoveReduction(syncline::nccl::NcclRedOp op);
  bool FindReduction(syncline::nccl::NcclRedOp op, MadeReduction* found);

  // What one group has enqueued. Streams call these: the first one Run, the others RunBeside.
  struct Plan;
  void Run(Plan& plan);
  void RunBeside(Plan& plan);

 private:
  Communicator(int rank, int ranks, bool is_blocking, int device, std::string bus_id,
               syncline::device::CUcontext context)
      : rank_(rank),
        ranks_(ranks),
        is_blocking_(is_blocking),
        device_(device),
        bus_id_(std::move(bus_id)),
        context_(context) {}

  using Lock = std::unique_lock<std::mutex>;

  // Waits until `condition`; false if `stop` came first.
  bool WaitUntil(Lock& lock, const std::atomic<bool>& stop, const std::function<bool()>& condition);
  void Execute(const std::vector<Operation>& operations);
  // Lets the next plan run.
  void AdvanceTurn();

  int rank_;
  int ranks_;
  const bool is_blocking_;
  const int device_;
  const std::string bus_id_;
  const syncline::device::CUcontext context_;  // Of the device.
  std::shared_ptr<Segment> segment_;  // Written by Init, with mutex_; all its users come after.

  std::atomic<std::thread::id> user_{};  // The thread that has entered; none if that is {}.
  int entered_ = 0;                      // How often. The user's.

  // What loops in operations read without the lock.
  std::atomic<bool> is_stopped_{false};  // Revoked or aborted.
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> is_finalized_{false};
  std::atomic<bool> is_stuck_{false};
  std::atomic<bool> is_stalled_{false};

  std::mutex enqueue_mutex_;   // Streams get their work in the order of the numbers.
  std::mutex exchange_mutex_;  // One exchange at a time.

  std::mutex mutex_;
  std::condition_variable changed_;
  // Below: guarded by mutex_.
  syncline::nccl::NcclResult state_ = syncline::nccl::kNcclInProgress;
  int64_t operations_ = 0;
  uint64_t next_turn_ = 0;      // Of the next plan to be enqueued.
  uint64_t turn_ = 0;           // Of the plan that may run.
  std::set<uint64_t> skipped_;  // Turns of plans that no stream took.
  int running_ = 0;             // Threads in Run and RunBeside.
  std::map<int, MadeReduction> reductions_;

  std::mutex background_mutex_;
  std::thread background_;  // Guarded by background_mutex_.
};

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_COMMUNICATOR_H_
