#include "store/tcp/tcp_session.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline::tcp_store {
namespace {

// How long a client may take to read the last answers.
constexpr absl::Duration kTimeToDrain = absl::Seconds(1);

}  // namespace

TCPSession* TCPSession::Start(std::shared_ptr<Shared> shared,
                              grpc::CallbackServerContext* context) {
  auto session = std::make_shared<TCPSession>(std::move(shared), context);
  session->self_ = session;
  session->Begin();
  return session.get();
}

TCPSession::TCPSession(std::shared_ptr<Shared> shared, grpc::CallbackServerContext* context)
    : shared_(std::move(shared)), context_(context) {}

void TCPSession::Begin() {
  // The table is a part of what is shared, and lives as long.
  requests_ =
      std::make_shared<RequestHandler>(std::shared_ptr<store::Table>(shared_, &shared_->table),
                                       [weak = weak_from_this()](wire::ServerMessage answer) {
                                         if (auto session = weak.lock())
                                           session->Send(std::move(answer));
                                       });
  bool closing = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    closing = shared_->closing;
    if (!closing) shared_->sessions.emplace(this, weak_from_this());
  }
  if (closing) return Close({grpc::StatusCode::UNAVAILABLE, "the server is shutting down"});

  StartRead(&incoming_);
}

void TCPSession::OnReadDone(bool ok) {
  if (!ok) return Close(grpc::Status::OK);
  wire::ClientMessage message;
  message.Swap(&incoming_);
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
  }
  requests_->Handle(&message);
  StartRead(&incoming_);  // Only now, so that a cancellation does not overtake its wait.
}

void TCPSession::Send(wire::ServerMessage message) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  outgoing_.push_back(std::move(message));
  if (writing_) return;
  writing_ = true;
  StartWrite(&outgoing_.front());
}

void TCPSession::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  outgoing_.pop_front();
  if (!ok) {
    closing_ = true;  // The stream is broken; OnReadDone and OnCancel tidy up.
    outgoing_.clear();
  }
  writing_ = !outgoing_.empty();
  if (writing_) {
    StartWrite(&outgoing_.front());
  } else {
    FinishIfIdle();
  }
}

// A client that does not read leaves a write pending for ever, and a stream with a pending write
// cannot be finished, only cancelled.
void TCPSession::Close(const grpc::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    BeginClosing(status);
  }
  // Wakes waits of other sessions, which then send. If it is the server that goes, nobody reads
  // what is set.
  requests_->Close();
}

void TCPSession::BeginClosing(const grpc::Status& status) {
  if (!draining_) {
    draining_ = true;
    drain_.Set(absl::ToChronoTime(absl::Now() + kTimeToDrain), [weak = weak_from_this()](bool) {
      if (std::shared_ptr<TCPSession> session = weak.lock()) session->CancelUnlessDone();
    });
  }
  if (!closing_) status_ = status;
  closing_ = true;
  FinishIfIdle();
}

void TCPSession::FinishIfIdle() {
  if (!closing_ || writing_ || finished_) return;
  finished_ = true;
  Finish(status_);
}

void TCPSession::OnCancel() { Close(grpc::Status::CANCELLED); }

void TCPSession::CancelUnlessDone() {
  absl::MutexLock lock(&mutex_);
  if (!done_) context_->TryCancel();
}

void TCPSession::OnDone() {
  {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->sessions.erase(this);
  }
  const std::shared_ptr<TCPSession> self = std::move(self_);
}

}  // namespace syncline::tcp_store
