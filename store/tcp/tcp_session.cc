#include "store/tcp/tcp_session.h"

#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "store/common/errors.h"
#include "store/tcp/tcp_limits.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using store::CheckKey;
using store::CheckKeys;
using store::Table;

// How long a client may take to read the last answers.
constexpr absl::Duration kTimeToDrain = absl::Seconds(1);

std::vector<std::string> Take(google::protobuf::RepeatedPtrField<std::string>* strings) {
  return {std::make_move_iterator(strings->begin()), std::make_move_iterator(strings->end())};
}

void FillValues(std::vector<std::string> values, wire::ServerMessage* reply) {
  auto* out = reply->mutable_values()->mutable_values();
  out->Reserve(static_cast<int>(values.size()));
  for (std::string& value : values) *out->Add() = std::move(value);
}

void FillDone(std::vector<std::string>, wire::ServerMessage* reply) { reply->mutable_done(); }

// One overload for each result of a table's operation.
void Fill(bool yes, wire::ServerMessage* reply) { reply->set_yes(yes); }
void Fill(int64_t sum, wire::ServerMessage* reply) { reply->set_sum(sum); }
void Fill(Store::CompareSetResult result, wire::ServerMessage* reply) {
  reply->mutable_compared()->set_swapped(result.swapped);
  *reply->mutable_compared()->mutable_value() = std::move(result.value);
}

void FillOutcome(const absl::Status& status, wire::ServerMessage* reply) {
  if (status.ok()) {
    reply->mutable_done();
    return;
  }
  wire::Error* error = reply->mutable_error();
  error->set_kind(KindOf(status) == ErrorKind::kArgument ? wire::Error::ARGUMENT
                                                         : wire::Error::STORE);
  error->set_message(std::string(status.message()));
}

template <typename T>
void FillOutcome(absl::StatusOr<T> result, wire::ServerMessage* reply) {
  if (!result.ok()) return FillOutcome(result.status(), reply);
  Fill(*std::move(result), reply);
}

absl::Status QueuePush(Table* table, const wire::Pairs& pairs) {
  if (pairs.keys_size() != 1 || pairs.values_size() != 1) {
    return ArgumentError("a push to a queue has one key and one value");
  }
  return table->QueuePush(pairs.keys(0), pairs.values(0));
}

absl::Status Append(Table* table, const wire::Pairs& pairs) {
  if (pairs.keys_size() != 1 || pairs.values_size() != 1) {
    return ArgumentError("an append has one key and one value");
  }
  return table->Append(pairs.keys(0), pairs.values(0));
}

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
  Handle(&message);
  StartRead(&incoming_);  // Only now, so that a cancellation does not overtake its wait.
}

void TCPSession::Handle(wire::ClientMessage* message) {
  using Body = wire::ClientMessage::BodyCase;
  Table& table = shared_->table;
  wire::ServerMessage reply;
  reply.set_id(message->id());
  switch (message->body_case()) {
    case Body::kGet:
      return Wait(message->id(), message->mutable_get(), Table::Needs::kValues, &FillValues);
    case Body::kWait:
      return Wait(message->id(), message->mutable_wait(), Table::Needs::kPresence, &FillDone);
    case Body::kQueuePop:
      return QueuePop(message->id(), message->queue_pop());
    case Body::kCancel:
      return Cancel(message->id());
    case Body::kSet:
      FillOutcome(table.MultiSet(Take(message->mutable_set()->mutable_keys()),
                                 Take(message->mutable_set()->mutable_values())),
                  &reply);
      break;
    case Body::kCheck:
      FillOutcome(table.Check(Take(message->mutable_check()->mutable_keys())), &reply);
      break;
    case Body::kAdd:
      FillOutcome(table.Add(message->add().key(), message->add().amount()), &reply);
      break;
    case Body::kCompareSet: {
      const wire::Comparison& body = message->compare_set();
      FillOutcome(table.CompareSet(body.key(), body.expected(), body.desired()), &reply);
      break;
    }
    case Body::kRemove:
      FillOutcome(table.Delete(message->remove()), &reply);
      break;
    case Body::kList:
      FillValues(table.Keys(message->list()), &reply);
      break;
    case Body::kAppend:
      FillOutcome(Append(&table, message->append()), &reply);
      break;
    case Body::kQueuePush:
      FillOutcome(QueuePush(&table, message->queue_push()), &reply);
      break;
    case Body::kQueueTryPop: {
      std::optional<std::string> value = table.QueueTryPop(message->queue_try_pop());
      reply.mutable_values();
      if (value.has_value()) FillValues({*std::move(value)}, &reply);
      break;
    }
    case Body::kQueueLength:
      Fill(table.QueueLength(message->queue_length()), &reply);
      break;
    case Body::kSetOnDisconnect:
      FillOutcome(SetOnDisconnect(message->mutable_set_on_disconnect()), &reply);
      break;
    case Body::BODY_NOT_SET:
      FillOutcome(ArgumentError("the server does not know this request; see whether all processes "
                                "run the same version"),
                  &reply);
      break;
  }
  Send(std::move(reply));
}

absl::Status TCPSession::SetOnDisconnect(wire::Pairs* pairs) {
  const std::vector<std::string> keys = Take(pairs->mutable_keys());
  std::vector<std::string> values = Take(pairs->mutable_values());
  SYNCLINE_RETURN_IF_ERROR(store::CheckPairs(keys, values));
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) on_disconnect_[keys[i]] = std::move(values[i]);
  return absl::OkStatus();
}

void TCPSession::Wait(uint64_t id, wire::Keys* keys, Table::Needs needs, FillReply fill) {
  wire::ServerMessage reply;
  reply.set_id(id);
  std::vector<std::string> names = Take(keys->mutable_keys());
  absl::Status status = CheckKeys(names);
  bool is_parked = false;
  if (status.ok()) {
    status = ParkOrFill(
        &reply, fill,
        [&](Table::Ready ready, Table::WaitId* wait) {
          return shared_->table.GetOrPark(std::move(names), needs, std::move(ready), wait);
        },
        &is_parked);
  }
  if (is_parked) return;
  if (!status.ok()) FillOutcome(status, &reply);
  Send(std::move(reply));
}

void TCPSession::QueuePop(uint64_t id, const std::string& key) {
  wire::ServerMessage reply;
  reply.set_id(id);
  absl::Status status = CheckKey(key);
  bool is_parked = false;
  if (status.ok()) {
    status = ParkOrFill(
        &reply, &FillValues,
        [&](Table::Ready ready, Table::WaitId* wait) {
          return shared_->table.QueuePopOrPark(key, std::move(ready), wait);
        },
        &is_parked);
  }
  if (is_parked) return;
  if (!status.ok()) FillOutcome(status, &reply);
  Send(std::move(reply));
}

// Fills `reply` with what is there, or has EndWait answer later. A session that is closing answers
// nobody.
absl::Status TCPSession::ParkOrFill(wire::ServerMessage* reply, FillReply fill, Park park,
                                    bool* is_parked) {
  const uint64_t id = reply->id();
  // EndWait takes the mutex too, so it finds the entry even if it runs at once.
  absl::MutexLock lock(&mutex_);
  *is_parked = true;
  if (closing_) return absl::OkStatus();
  auto [entry, is_new] = parked_.emplace(id, 0);
  if (!is_new) {
    *is_parked = false;
    return ArgumentError(absl::StrCat("request ", id, " is waiting already"));
  }
  std::optional<std::vector<std::string>> values = park(
      [weak = weak_from_this(), id, fill](std::vector<std::string> values) {
        if (auto session = weak.lock()) session->EndWait(id, std::move(values), fill);
      },
      &entry->second);
  if (!values.has_value()) return absl::OkStatus();
  parked_.erase(entry);
  *is_parked = false;
  fill(*std::move(values), reply);
  return absl::OkStatus();
}

void TCPSession::EndWait(uint64_t id, std::vector<std::string> values, FillReply fill) {
  {
    absl::MutexLock lock(&mutex_);
    parked_.erase(id);
  }
  wire::ServerMessage reply;
  reply.set_id(id);
  fill(std::move(values), &reply);
  Send(std::move(reply));
}

void TCPSession::Cancel(uint64_t id) {
  std::optional<std::vector<std::string>> missing;
  {
    absl::MutexLock lock(&mutex_);
    auto entry = parked_.find(id);
    if (entry == parked_.end()) return;  // It has been answered.
    missing = shared_->table.Unpark(entry->second);
    if (!missing.has_value()) return;  // Its answer is on the way.
    parked_.erase(entry);
  }
  wire::ServerMessage reply;
  reply.set_id(id);
  for (std::string& key : *missing) *reply.mutable_not_set()->add_keys() = std::move(key);
  Send(std::move(reply));
}

void TCPSession::Send(wire::ServerMessage message) {
  if (const size_t size = message.ByteSizeLong(); size > kMaxMessageBytes) {
    const uint64_t id = message.id();
    message.Clear();
    message.set_id(id);
    FillOutcome(StoreError(TooLargeMessage("the answer", size)), &message);
  }
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
  absl::flat_hash_map<std::string, std::string> on_disconnect;
  {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    BeginClosing(status);
    on_disconnect.swap(on_disconnect_);
  }
  // Wakes waits of other sessions, and so takes their mutexes. If it is the server that goes,
  // nobody reads what is set.
  for (auto& [key, value] : on_disconnect) {
    shared_->table.MultiSet({key}, {std::move(value)}).IgnoreError();
  }
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
  for (const auto& wait : parked_) shared_->table.Unpark(wait.second);
  parked_.clear();
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
