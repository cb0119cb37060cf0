#include "backends/mpi/tag_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "backends/mpi/leftovers.h"
#include "syncline/status.h"

namespace syncline::mpi {

TagMatcher::~TagMatcher() {
  absl::MutexLock lock(&mutex_);
  if (receiving_ != nullptr) KeepRequests(connections_.api(), {request_}, {receiving_});
}

absl::Status TagMatcher::Receive(int from, int64_t tag, const Deadline& deadline, Message& message,
                                 int& source) {
  Posted posted = {from, tag, {}};
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                    [&](const Arrived& arrived) { return posted.Fits(arrived); });
    if (found != unexpected_.end()) {
      posted.arrived = *found;
      unexpected_.erase(found);
    } else {
      posted_.push_back(&posted);
    }
  }
  const absl::Cleanup withdraw = [&] {
    absl::MutexLock lock(&mutex_);
    posted_.remove(&posted);
  };
  SYNCLINE_RETURN_IF_ERROR(WaitUntil(
      connections_, deadline, [&] { return Poll(posted); },
      [from] {
        return from == kMpiAnySource ? NeededPeers{{}, true} : NeededPeers{{from}, false};
      }));
  absl::MutexLock lock(&mutex_);
  if (posted.arrived.message == nullptr) return error_;
  message = *posted.arrived.message;
  source = posted.arrived.source;
  return absl::OkStatus();
}

bool TagMatcher::Poll(const Posted& posted) {
  const MpiApi& api = connections_.api();
  absl::MutexLock lock(&mutex_);
  while (error_.ok() && posted.arrived.message == nullptr) {
    int error = kMpiSuccess;
    if (receiving_ == nullptr) {
      // Always posted while somebody waits.
      receiving_.reset(new Message);
      error = api.irecv(receiving_.get(), sizeof(Message), kMpiAnySource,
                        connections_.tag_upper_bound(), connections_.messages(), &request_);
      if (error != kMpiSuccess) {
        error_ = MpiError(api, "MPI_Irecv", error);
        receiving_ = nullptr;
      }
      continue;
    }
    int done = 0;
    MpiMessage received;
    error = api.test(&request_, &done, &received);
    if (error != kMpiSuccess) error_ = MpiError(api, "MPI_Test", error);
    if (done == 0) {
      if (error == kMpiSuccess) return false;
      break;  // It is still under way: see the destructor.
    }
    if (error == kMpiSuccess && receiving_->header.nonce == connections_.nonce()) {
      Match({std::move(receiving_), received.source});
    }
    receiving_ = nullptr;
  }
  return true;
}

void TagMatcher::Match(Arrived arrived) {
  for (Posted* const posted : posted_) {
    if (posted->arrived.message != nullptr || !posted->Fits(arrived)) continue;
    posted->arrived = std::move(arrived);
    return;
  }
  unexpected_.push_back(std::move(arrived));
}

}  // namespace syncline::mpi
