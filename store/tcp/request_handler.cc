#include "store/tcp/request_handler.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "store/common/errors.h"
#include "store/tcp/tcp_limits.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline::tcp_store {
namespace {

using store::CheckKey;
using store::CheckKeys;
using store::Table;

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

RequestHandler::RequestHandler(std::shared_ptr<Table> table, Send send)
    : table_(std::move(table)), send_(std::move(send)) {}

void RequestHandler::Handle(wire::ClientMessage* message) {
  using Body = wire::ClientMessage::BodyCase;
  Table& table = *table_;
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
  Answer(std::move(reply));
}

absl::Status RequestHandler::SetOnDisconnect(wire::Pairs* pairs) {
  const std::vector<std::string> keys = Take(pairs->mutable_keys());
  std::vector<std::string> values = Take(pairs->mutable_values());
  SYNCLINE_RETURN_IF_ERROR(store::CheckPairs(keys, values));
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) on_disconnect_[keys[i]] = std::move(values[i]);
  return absl::OkStatus();
}

void RequestHandler::Wait(uint64_t id, wire::Keys* keys, Table::Needs needs, FillReply fill) {
  wire::ServerMessage reply;
  reply.set_id(id);
  std::vector<std::string> names = Take(keys->mutable_keys());
  absl::Status status = CheckKeys(names);
  bool is_parked = false;
  if (status.ok()) {
    status = ParkOrFill(
        &reply, fill,
        [&](Table::Ready ready, Table::WaitId* wait) {
          return table_->GetOrPark(std::move(names), needs, std::move(ready), wait);
        },
        &is_parked);
  }
  if (is_parked) return;
  if (!status.ok()) FillOutcome(status, &reply);
  Answer(std::move(reply));
}

void RequestHandler::QueuePop(uint64_t id, const std::string& key) {
  wire::ServerMessage reply;
  reply.set_id(id);
  absl::Status status = CheckKey(key);
  bool is_parked = false;
  if (status.ok()) {
    status = ParkOrFill(
        &reply, &FillValues,
        [&](Table::Ready ready, Table::WaitId* wait) {
          return table_->QueuePopOrPark(key, std::move(ready), wait);
        },
        &is_parked);
  }
  if (is_parked) return;
  if (!status.ok()) FillOutcome(status, &reply);
  Answer(std::move(reply));
}

// Fills `reply` with what is there, or has EndWait answer later. A handler that is closed answers
// nobody.
absl::Status RequestHandler::ParkOrFill(wire::ServerMessage* reply, FillReply fill, Park park,
                                        bool* is_parked) {
  const uint64_t id = reply->id();
  // EndWait takes the mutex too, so it finds the entry even if it runs at once.
  absl::MutexLock lock(&mutex_);
  *is_parked = true;
  if (is_closed_) return absl::OkStatus();
  auto [entry, is_new] = parked_.emplace(id, 0);
  if (!is_new) {
    *is_parked = false;
    return ArgumentError(absl::StrCat("request ", id, " is waiting already"));
  }
  std::optional<std::vector<std::string>> values = park(
      [weak = weak_from_this(), id, fill](std::vector<std::string> values) {
        if (auto handler = weak.lock()) handler->EndWait(id, std::move(values), fill);
      },
      &entry->second);
  if (!values.has_value()) return absl::OkStatus();
  parked_.erase(entry);
  *is_parked = false;
  fill(*std::move(values), reply);
  return absl::OkStatus();
}

void RequestHandler::EndWait(uint64_t id, std::vector<std::string> values, FillReply fill) {
  {
    absl::MutexLock lock(&mutex_);
    parked_.erase(id);
  }
  wire::ServerMessage reply;
  reply.set_id(id);
  fill(std::move(values), &reply);
  Answer(std::move(reply));
}

void RequestHandler::Cancel(uint64_t id) {
  std::optional<std::vector<std::string>> missing;
  {
    absl::MutexLock lock(&mutex_);
    auto entry = parked_.find(id);
    if (entry == parked_.end()) return;  // It has been answered.
    missing = table_->Unpark(entry->second);
    if (!missing.has_value()) return;  // Its answer is on the way.
    parked_.erase(entry);
  }
  wire::ServerMessage reply;
  reply.set_id(id);
  for (std::string& key : *missing) *reply.mutable_not_set()->add_keys() = std::move(key);
  Answer(std::move(reply));
}

void RequestHandler::Answer(wire::ServerMessage answer) {
  if (const size_t size = answer.ByteSizeLong(); size > kMaxMessageBytes) {
    const uint64_t id = answer.id();
    answer.Clear();
    answer.set_id(id);
    FillOutcome(StoreError(TooLargeMessage("the answer", size)), &answer);
  }
  send_(std::move(answer));
}

void RequestHandler::Close() {
  absl::flat_hash_map<std::string, std::string> on_disconnect;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_ = true;
    for (const auto& wait : parked_) table_->Unpark(wait.second);
    parked_.clear();
    on_disconnect.swap(on_disconnect_);
  }
  // Wakes waits of other handlers, and so takes their mutexes.
  for (auto& [key, value] : on_disconnect) {
    table_->MultiSet({key}, {std::move(value)}).IgnoreError();
  }
}

}  // namespace syncline::tcp_store
