#include "backends/mpi/mpi_requests.h"

#include <sched.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/mpi/thresholds.h"
#include "core/base/stall.h"
#include "syncline/collective.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

class MpiMessages final : public backends::Messages {
 public:
  MpiMessages(MpiConnections& connections, const CallContext& call, std::shared_ptr<void> memory)
      : comm_(connections.collectives()), requests_(connections, call) {
    requests_.Keep(std::move(memory));
  }

  void Send(int to, const void* data, size_t nbytes) override {
    if (nbytes > 0) requests_.Send(comm_, to, kCollectiveTag, data, nbytes);
  }
  void Receive(int from, void* data, size_t nbytes) override {
    if (nbytes > 0) requests_.Receive(comm_, from, kCollectiveTag, data, nbytes);
  }
  absl::Status Wait() override { return requests_.Wait(); }
  void Keep(std::shared_ptr<void> memory) override { requests_.Keep(std::move(memory)); }

 private:
  const MpiHandle comm_;
  MpiRequests requests_;
};

}  // namespace

absl::Status MpiError(const MpiApi& api, absl::string_view function, int error) {
  char text[512] = "";
  if (api.error_string(error, text, sizeof(text)) != kMpiSuccess) text[0] = '\0';
  return NetworkError(absl::StrCat(
      function, ": ", text[0] != '\0' ? std::string(text) : absl::StrCat("MPI error ", error)));
}

MpiRequests::~MpiRequests() {
  if (requests_.empty()) return;
  error_ = absl::OkStatus();
  const MpiApi& api = connections_.api();
  for (Request& request : requests_) {
    request.message = nullptr;
    api.cancel(&request.handle);  // MPI cannot cancel all of them.
  }
  const Deadline deadline(kCancelTimeout);
  while (!Test() && error_.ok() && !deadline.Expired()) sched_yield();
  std::vector<MpiHandle> handles;
  for (const Request& request : requests_) handles.push_back(request.handle);
  std::vector<std::shared_ptr<void>> memory(memory_.begin(), memory_.end());
  const auto owners = std::make_shared<Collective>(*call_.collective);
  owners->Own();
  memory.push_back(owners);
  connections_.Abandon(std::move(handles), std::move(memory));
}

void MpiRequests::Send(MpiHandle comm, int to, int tag, const void* data, size_t nbytes) {
  if (!error_.ok()) return;
  const MpiApi& api = connections_.api();
  Request request = {0, to, nullptr};
  const int error = api.isend(data, nbytes, to, tag, comm, &request.handle);
  if (error != kMpiSuccess) {
    error_ = MpiError(api, "MPI_Isend", error);
  } else {
    requests_.push_back(request);
  }
}

void MpiRequests::Receive(MpiHandle comm, int from, int tag, void* data, size_t nbytes,
                          MpiMessage* message) {
  if (!error_.ok()) return;
  const MpiApi& api = connections_.api();
  Request request = {0, from, message};
  const int error = api.irecv(data, nbytes, from, tag, comm, &request.handle);
  if (error != kMpiSuccess) {
    error_ = MpiError(api, "MPI_Irecv", error);
  } else {
    requests_.push_back(request);
  }
}

bool MpiRequests::Test() {
  const MpiApi& api = connections_.api();
  for (size_t i = 0; i < requests_.size();) {
    int done = 0;
    const int error = api.test(&requests_[i].handle, &done, requests_[i].message);
    if (error != kMpiSuccess) error_ = MpiError(api, "MPI_Test", error);
    if (done == 0) {
      if (!error_.ok()) return true;
      ++i;
      continue;
    }
    requests_[i] = requests_.back();
    requests_.pop_back();
    if (!error_.ok()) return true;
  }
  return requests_.empty();
}

absl::Status MpiRequests::Wait() {
  if (!error_.ok()) return error_;
  const absl::Status waited = WaitUntil(
      connections_, call_.deadline, [this] { return Test(); },
      [this] {
        NeededPeers needed;
        for (const Request& request : requests_) {
          if (request.peer == kMpiAnySource) {
            needed.any = true;
          } else {
            needed.peers.push_back(request.peer);
          }
        }
        return needed;
      });
  return error_.ok() ? waited : error_;
}

absl::Status WaitUntil(MpiConnections& connections, const Deadline& deadline,
                       absl::FunctionRef<bool()> ready, absl::FunctionRef<NeededPeers()> needed) {
  for (int i = 0; i < kTestsBetweenChecks; ++i) {
    if (ready()) return absl::OkStatus();
  }
  const absl::Time began = absl::Now();
  while (true) {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    const NeededPeers peers = needed();
    absl::Status obstacle = connections.Check(peers.peers, peers.any, absl::Now() - began);
    if (obstacle.ok() && deadline.Expired()) {
      obstacle = TimeoutError(
          absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
    }
    // It may have come since the last look.
    if (ready()) return absl::OkStatus();
    if (!obstacle.ok()) return obstacle;
    base::StallWatch::Look();
    const bool sleeps = absl::Now() - began > kYieldTime;
    for (int i = 0; i < kTestsBetweenChecks; ++i) {
      if (sleeps) {
        absl::SleepFor(kSleepTime);
      } else {
        sched_yield();
      }
      if (ready()) return absl::OkStatus();
    }
  }
}

std::unique_ptr<backends::Messages> MpiTransport::NewMessages() {
  return std::make_unique<MpiMessages>(connections_, call_, memory_);
}

}  // namespace syncline::mpi
