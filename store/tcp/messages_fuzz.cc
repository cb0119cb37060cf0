// What clients and servers of a tcp store send each other once they have proved the secret.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/testing/fuzz/fuzz.h"
#include "store/common/table.h"
#include "store/tcp/answers.h"
#include "store/tcp/request_handler.h"
#include "store/tcp/store.pb.h"
#include "store/tcp/tcp_limits.h"
#include "syncline/status.h"

namespace syncline::fuzz {
namespace {

using tcp_store::RequestHandler;
using wire::ClientMessage;
using wire::ServerMessage;

constexpr int kClients = 2;

// One client, as the server of a table sees it.
class Client {
 public:
  explicit Client(std::shared_ptr<store::Table> table)
      : handler_(std::make_shared<RequestHandler>(
            std::move(table), [this](ServerMessage answer) { Take(answer); })) {}

  void Send(ClientMessage message) {
    if (message.has_set_on_disconnect()) {
      setting_on_disconnect_[message.id()] = message.set_on_disconnect();
    }
    if (!message.has_cancel()) ++unanswered_[message.id()];
    handler_->Handle(&message);
  }

  void Leave() {
    has_left_ = true;
    handler_->Close();
  }

  int64_t unanswered() const {
    int64_t all = 0;
    for (const auto& [id, count] : unanswered_) all += count;
    return all;
  }
  // Those that are set once the client has left.
  const std::vector<std::string>& keys_on_disconnect() const { return keys_on_disconnect_; }

 private:
  void Take(const ServerMessage& answer) {
    Require(!has_left_, "who has left gets no answer");
    Require(answer.ByteSizeLong() <= tcp_store::kMaxMessageBytes, "an answer can be sent");
    Require(answer.body_case() != ServerMessage::BODY_NOT_SET, "an answer says something");
    Require(--unanswered_[answer.id()] >= 0, "a request is answered once");
    const auto request = setting_on_disconnect_.find(answer.id());
    if (request == setting_on_disconnect_.end()) return;
    if (answer.has_done()) {
      const auto& keys = request->second.keys();
      keys_on_disconnect_.insert(keys_on_disconnect_.end(), keys.begin(), keys.end());
    }
    setting_on_disconnect_.erase(request);
  }

  bool has_left_ = false;
  std::map<uint64_t, int64_t> unanswered_;  // By id, which a client may use several times.
  std::map<uint64_t, wire::Pairs> setting_on_disconnect_;  // Not answered yet, by id.
  std::vector<std::string> keys_on_disconnect_;
  const std::shared_ptr<RequestHandler> handler_;
};

void Serve(Reader& reader) {
  const auto table = std::make_shared<store::Table>();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(std::make_unique<Client>(table));
  while (!reader.is_empty()) {
    Client& client = *clients[static_cast<size_t>(reader.Below(kClients))];
    const absl::string_view bytes = reader.Text();
    ClientMessage message;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
    client.Send(std::move(message));
    int64_t unanswered = 0;
    for (const auto& each : clients) unanswered += each->unanswered();
    Require(unanswered == table->NumWaits(), "what waits is parked, and all else is answered");
  }
  for (const auto& client : clients) {
    client->Leave();
    Require(*table->Check(client->keys_on_disconnect()),
            "what a client has left for its end is set");
  }
  Require(table->NumWaits() == 0, "who has left waits for nothing");
}

void Ask(Reader& reader) {
  constexpr ServerMessage::BodyCase kSorts[] = {ServerMessage::kDone, ServerMessage::kValues,
                                                ServerMessage::kSum, ServerMessage::kCompared,
                                                ServerMessage::kYes};
  const ServerMessage::BodyCase expected = kSorts[reader.Below(5)];
  const size_t count = static_cast<size_t>(reader.Below(4));
  const std::string prefix(reader.Text());
  ServerMessage answer;
  if (!answer.ParseFromArray(reader.rest().data(), static_cast<int>(reader.rest().size()))) return;
  const absl::Status status =
      tcp_store::CheckAnswer("tcp://host:1", absl::Seconds(1), expected, answer);
  Require(status.ok() == (answer.body_case() == expected), "an answer is of one sort");
  if (!status.ok()) {
    Require(absl::StartsWith(status.message(), "store tcp://host:1: "), "an error names the store");
    return;
  }
  if (expected != ServerMessage::kValues) return;
  ServerMessage copy = answer;
  const auto values = tcp_store::TakeValues("tcp://host:1", count, copy);
  Require(!values.ok() || values->size() == count, "there is a value for each key");
  const auto keys = tcp_store::TakeKeys("tcp://host:1", prefix, answer);
  if (!keys.ok()) return;
  for (const std::string& key : *keys) {
    Require(absl::StartsWith(key, prefix), "a key has the prefix that was asked for");
  }
}

// Requests of one client, from the first id on.
std::string Sent(char client, std::vector<ClientMessage> requests) {
  std::string sent;
  uint64_t id = 0;
  for (ClientMessage& request : requests) {
    if (!request.has_cancel()) request.set_id(++id);
    sent += client + Text(request.SerializeAsString());
  }
  return sent;
}

ClientMessage Set(absl::string_view key, absl::string_view value) {
  ClientMessage request;
  request.mutable_set()->add_keys(std::string(key));
  request.mutable_set()->add_values(std::string(value));
  return request;
}

ClientMessage Get(const std::vector<std::string>& keys) {
  ClientMessage request;
  for (const std::string& key : keys) request.mutable_get()->add_keys(key);
  return request;
}

std::vector<ClientMessage> EachRequest() {
  std::vector<ClientMessage> all = {Set("a", "1"), Get({"a"})};
  all.emplace_back().mutable_wait()->add_keys("a");
  all.emplace_back().mutable_check()->add_keys("b");
  wire::Addition& addition = *all.emplace_back().mutable_add();
  addition.set_key("a");
  addition.set_amount(-5);
  wire::Comparison& comparison = *all.emplace_back().mutable_compare_set();
  comparison.set_key("b");
  comparison.set_desired("2");
  all.emplace_back().set_list("");
  const auto fill = [](wire::Pairs* pairs) {
    pairs->add_keys("q");
    pairs->add_values("v");
  };
  fill(all.emplace_back().mutable_append());
  fill(all.emplace_back().mutable_queue_push());
  fill(all.emplace_back().mutable_set_on_disconnect());
  all.emplace_back().set_queue_length("q");
  all.emplace_back().set_queue_pop("q");
  all.emplace_back().set_queue_try_pop("q");
  all.emplace_back().set_remove("a");
  all.emplace_back();  // Of another version.
  return all;
}

std::vector<ServerMessage> EachAnswer() {
  std::vector<ServerMessage> all(7);
  all[0].mutable_done();
  for (const char* key : {"a/1", "a/2"}) all[1].mutable_values()->add_values(key);
  all[2].set_sum(7);
  all[3].mutable_compared()->set_swapped(true);
  all[4].set_yes(true);
  all[5].mutable_not_set()->add_keys("a/1");
  all[6].mutable_error()->set_message("no");
  return all;
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  if (reader.Below(2) == 0) return Serve(reader);
  return Ask(reader);
}

std::vector<std::string> Seeds() {
  const std::string serve(1, '\0'), ask = "\1";
  std::vector<std::string> seeds;
  const std::vector<ClientMessage> each = EachRequest();
  for (const ClientMessage& request : each) seeds.push_back(serve + Sent(0, {request}));
  seeds.push_back(serve + Sent(0, each));
  // A wait that the other client ends, one that is cancelled, and one that is left behind.
  seeds.push_back(serve + Sent(0, {Get({"a", "b"})}) + Sent(1, {Set("a", "1"), Set("b", "2")}));
  ClientMessage cancel, pop;
  cancel.set_id(1);
  cancel.mutable_cancel();
  pop.set_queue_pop("q");
  seeds.push_back(serve + Sent(0, {Get({"a"}), cancel}) + Sent(1, {Get({"a"})}));
  seeds.push_back(serve + Sent(0, {pop}) + Sent(1, {pop, cancel}));
  // Two waits of one id.
  seeds.push_back(serve + Sent(0, {Get({"a"})}) + Sent(0, {Get({"b"})}));
  const char sorts = 5;
  for (const ServerMessage& answer : EachAnswer()) {
    for (char sort = 0; sort < sorts; ++sort) {
      seeds.push_back(
          absl::StrCat(ask, std::string(1, sort), "\2", Text("a/"), answer.SerializeAsString()));
    }
  }
  // Keys that do not begin with what was asked for once ended the process.
  seeds.push_back(
      absl::StrCat(ask, "\1\2", Text("another prefix/"), EachAnswer()[1].SerializeAsString()));
  return seeds;
}

}  // namespace syncline::fuzz
