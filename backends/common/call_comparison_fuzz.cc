// The calls that other ranks say they have made: fingerprints, and calls in full.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/common/call_comparison.h"
#include "backends/common/call_description.h"
#include "backends/common/call_fingerprint.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/message_transport.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::fuzz {
namespace {

using backends::CallDescription;
using backends::CallFingerprint;
using backends::FingerprintExchange;
using backends::FingerprintRecord;

constexpr int kSize = 3;

// Calls of this rank, each with all that it borrows.
struct Call {
  std::vector<Tensor> tensors;
  Collective collective{OpKind::kBarrier};
  CallContext context;
};

std::unique_ptr<Call> NewCall(int kind, uint64_t sequence) {
  auto call = std::make_unique<Call>();
  for (const int64_t size : {2, 3, 4}) {
    call->tensors.push_back(Tensor::Zeros(DType::kFloat32, {size}));
  }
  const Tensor& tensor = call->tensors[0];
  switch (kind) {
    case 0:
      call->collective = Collective::AllReduce(tensor, ReduceOp::kSum);
      break;
    case 1:
      call->collective = Collective::Broadcast(tensor, 1);
      break;
    case 2:
      call->collective = Collective::AllGather(call->tensors, tensor);
      break;
    case 3:
      call->collective = Collective::ReduceScatter(tensor, call->tensors, ReduceOp::kMax);
      break;
    case 4:
      call->collective = Collective::AllToAll(call->tensors, call->tensors);
      break;
    case 5: {
      auto users = std::make_shared<std::vector<Tensor>>(call->tensors);
      call->collective = Collective::AllReduce(tensor, ReduceOp::kSum);
      call->collective.user_name = "all_reduce_coalesced";
      call->collective.user_tensors = std::move(users);
      break;
    }
    default:
      break;
  }
  call->context.sequence = sequence;
  call->context.collective = &call->collective;
  return call;
}

constexpr int kKinds = 7;

// Fills each receive with what the input has.
class InputTransport final : public backends::MessageTransport {
 public:
  explicit InputTransport(Reader& reader) : MessageTransport(0, kSize), reader_(reader) {}

  std::unique_ptr<backends::Messages> NewMessages() override {
    return std::make_unique<InputMessages>(reader_);
  }

 private:
  class InputMessages final : public backends::Messages {
   public:
    explicit InputMessages(Reader& reader) : reader_(reader) {}
    void Send(int, const void*, size_t) override {}
    void Receive(int, void* data, size_t nbytes) override {
      const absl::string_view bytes = reader_.Bytes(nbytes);
      std::memset(data, 0, nbytes);
      std::memcpy(data, bytes.data(), bytes.size());
    }
    absl::Status Wait() override { return absl::OkStatus(); }

   private:
    Reader& reader_;
  };

  Reader& reader_;
};

FingerprintRecord ReadRecord(Reader& reader) {
  FingerprintRecord record = {};
  const absl::string_view bytes = reader.Bytes(sizeof(record));
  std::memcpy(&record, bytes.data(), bytes.size());
  return record;
}

// What messages make of a call.
void Quote(const CallDescription& call) {
  Require(!call.ToString().empty() && !call.ShortName().empty(), "a call has a name");
  const ErrorOrigin::Operation operation = call.OperationOf(1);
  Require(!operation.name.empty(), "an operation has a name");
}

void Compare(Reader& reader) {
  const int kind = reader.Below(kKinds);
  const auto call = NewCall(kind, reader.Byte());
  InputTransport transport(reader);
  int equal = 0, records = 0;
  const absl::Status status = backends::CompareCalls(
      transport, call->context, [&](FingerprintExchange& exchange) -> absl::Status {
        for (int round = 0; round < exchange.rounds(); ++round) {
          const FingerprintRecord record = ReadRecord(reader);
          Quote(CallDescription(record.call));
          backends::HashOf(record);
          ++records;
          if (record.call == FingerprintRecord::Of(call->context).call) ++equal;
          exchange.Merge(record);
        }
        return absl::OkStatus();
      });
  Require(!status.ok() || equal == records, "a call that differs is an error");
  for (const int rank : RanksOf(status))
    Require(rank >= 0 && rank < kSize, "ranks are the group's");
}

void Gather(Reader& reader) {
  const int kind = reader.Below(kKinds);
  const auto call = NewCall(kind, reader.Byte());
  InputTransport transport(reader);
  const absl::Status status = backends::GatherCalls(transport, call->context);
  Require(!status.ok(), "ranks that disagree do not go on");
  for (const int rank : RanksOf(status))
    Require(rank >= 0 && rank < kSize, "ranks are the group's");
}

void Describe(Reader& reader) {
  const absl::string_view bytes = reader.rest();
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  if (words.empty()) return;
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int64_t));
  const auto call = CallDescription::FromWords(words);
  if (!call.ok()) return;
  Quote(*call);
  const auto again = CallDescription::FromWords(call->ToWords());
  Require(again.ok() && again->ToString() == call->ToString(), "what is sent again is the same");
}

std::string BytesOf(const std::vector<int64_t>& words) {
  return std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
}

std::string BytesOf(const FingerprintRecord& record) {
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return Compare(reader);
    case 1:
      return Gather(reader);
    default:
      return Describe(reader);
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char kind = 0; kind < kKinds; ++kind) {
    const auto own = NewCall(kind, 5), other = NewCall((kind + 1) % kKinds, 5);
    const std::string call = {kind, 5};
    const std::string same = BytesOf(FingerprintRecord::Of(own->context));
    const std::string differs = BytesOf(FingerprintRecord::Of(other->context));
    std::vector<int64_t> words = CallDescription(own->context).ToWords();
    seeds.push_back(absl::StrCat("\2", BytesOf(words)));
    words.resize(CallDescription::MaxWords(kSize));
    std::vector<int64_t> others = CallDescription(other->context).ToWords();
    others.resize(words.size());
    seeds.push_back(absl::StrCat(std::string(1, '\0'), call, same, same));
    seeds.push_back(
        absl::StrCat(std::string(1, '\0'), call, same, differs, BytesOf(others), BytesOf(words)));
    // It says that sizes are uneven, of which this operation may have none: this rank once sent
    // what lay behind its list of them.
    FingerprintRecord uneven = FingerprintRecord::Of(own->context);
    uneven.even = 7;
    seeds.push_back(absl::StrCat(std::string(1, '\0'), call, BytesOf(uneven), same));
    seeds.push_back(absl::StrCat("\1", call, BytesOf(words), BytesOf(others)));
    seeds.push_back(absl::StrCat("\1", call, BytesOf(words), BytesOf(words)));
  }
  return seeds;
}

}  // namespace syncline::fuzz
