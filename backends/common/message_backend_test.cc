#include "backends/common/message_backend.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/common/message_transport.h"
#include "backends/common/scratch_arena.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Log = std::vector<std::string>;

constexpr int kRank = 1;
constexpr int kSize = 3;

// Writes down its messages, which arrive without changing any memory.
class LoggedMessages final : public Messages {
 public:
  explicit LoggedMessages(Log& log) : log_(log) {}

  void Send(int to, const void*, size_t nbytes) override {
    log_.push_back(absl::StrCat(nbytes, " to ", to));
  }
  void Receive(int from, void*, size_t nbytes) override {
    log_.push_back(absl::StrCat(nbytes, " from ", from));
  }
  absl::Status Wait() override { return absl::OkStatus(); }

 private:
  Log& log_;
};

class LoggedTransport final : public MessageTransport {
 public:
  explicit LoggedTransport(Log& log) : MessageTransport(kRank, kSize), log_(log) {}

  std::unique_ptr<Messages> NewMessages() override {
    return std::make_unique<LoggedMessages>(log_);
  }

 private:
  Log& log_;
};

// Rank 1 of 3. Its calls agree unless `mismatch` is set.
class LoggedBackend final : public MessageBackend {
 public:
  LoggedBackend() : MessageBackend(kRank, kSize) {}

  absl::string_view name() const override { return "logged"; }
  void Abort(const absl::Status&) override {}

  absl::Status mismatch;
  Log log;
  std::vector<OpKind> compared;

 private:
  absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override {
    compared.push_back(context.collective->kind);
    SYNCLINE_RETURN_IF_ERROR(mismatch);
    LoggedTransport transport(log);
    ScratchArena scratch;
    MessageCollectives collectives(transport, {/*direct_reduce_max=*/1000, /*piece=*/1000},
                                   scratch);
    return algorithm(collectives);
  }
};

class MessageBackendTest : public testing::Test {
 protected:
  absl::Status Run(const Collective& collective) {
    CallContext context;
    context.deadline = Deadline(absl::Seconds(30));
    return RunAndWait(backend_, collective, context).status();
  }

  // The messages of a call that succeeds.
  Log MessagesOf(const Collective& collective) {
    backend_.log.clear();
    backend_.compared.clear();
    const absl::Status status = Run(collective);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(backend_.compared, ElementsAre(collective.kind));
    return backend_.log;
  }

  LoggedBackend backend_;
  // Of rank r, r + 1 bytes; those of `outputs_` are others.
  const std::vector<Tensor> inputs_ = {Tensor::Zeros(DType::kInt8, {1}),
                                       Tensor::Zeros(DType::kInt8, {2}),
                                       Tensor::Zeros(DType::kInt8, {3})};
  const std::vector<Tensor> outputs_ = {Tensor::Zeros(DType::kInt8, {4}),
                                        Tensor::Zeros(DType::kInt8, {2}),
                                        Tensor::Zeros(DType::kInt8, {6})};
  const Tensor& tensor_ = inputs_[kRank];
};

TEST_F(MessageBackendTest, EachCollectiveIsTheAlgorithmOfItsName) {
  EXPECT_THAT(MessagesOf(Collective::Broadcast(tensor_, 0)), ElementsAre("2 from 0"));
  EXPECT_THAT(MessagesOf(Collective::Broadcast(tensor_, 1)), ElementsAre("2 to 0", "2 to 2"));
  EXPECT_THAT(MessagesOf(Collective::AllReduce(tensor_, ReduceOp::kSum)),
              ElementsAre("2 from 0", "2 from 2", "2 to 0", "2 to 2"));
  EXPECT_THAT(MessagesOf(Collective::Reduce(tensor_, ReduceOp::kSum, 2)), ElementsAre("2 to 2"));
  EXPECT_THAT(MessagesOf(Collective::AllGather(outputs_, tensor_)),
              ElementsAre("4 from 0", "2 to 2", "6 from 2", "2 to 0"));
  EXPECT_THAT(MessagesOf(Collective::Gather({}, tensor_, 0)), ElementsAre("2 to 0"));
  EXPECT_THAT(MessagesOf(Collective::Gather(outputs_, tensor_, 1)),
              ElementsAre("4 from 0", "6 from 2"));
  EXPECT_THAT(MessagesOf(Collective::Scatter(tensor_, {}, 2)), ElementsAre("2 from 2"));
  EXPECT_THAT(MessagesOf(Collective::Scatter(outputs_[kRank], inputs_, 1)),
              ElementsAre("1 to 0", "3 to 2"));
  EXPECT_THAT(MessagesOf(Collective::ReduceScatter(outputs_[kRank], inputs_, ReduceOp::kSum)),
              testing::UnorderedElementsAre("2 from 0", "2 from 2", "1 to 0", "3 to 2"));
  EXPECT_THAT(MessagesOf(Collective::AllToAll(outputs_, inputs_)),
              ElementsAre("4 from 0", "3 to 2", "6 from 2", "1 to 0"));
}

TEST_F(MessageBackendTest, ScansAreByAllGather) {
  EXPECT_THAT(MessagesOf(Collective::Scan(tensor_, ReduceOp::kSum)),
              ElementsAre("2 from 0", "2 to 2", "2 from 2", "2 to 0"));
  EXPECT_THAT(MessagesOf(Collective::Exscan(tensor_, ReduceOp::kSum)),
              ElementsAre("2 from 0", "2 to 2", "2 from 2", "2 to 0"));
}

TEST_F(MessageBackendTest, NothingMovesWhereCallsDiffer) {
  backend_.mismatch = MismatchError("ranks 0 and 1 differ");
  EXPECT_EQ(Run(Collective::AllReduce(tensor_, ReduceOp::kSum)), backend_.mismatch);
  EXPECT_EQ(Run(Collective::Scan(tensor_, ReduceOp::kSum)), backend_.mismatch);
  EXPECT_THAT(backend_.log, IsEmpty());
}

TEST_F(MessageBackendTest, WhatTheBackendDoesNotSupplyIsNotServed) {
  for (const Collective& call :
       {Collective::Barrier(), Collective::Send(tensor_, 0), Collective::Recv(tensor_, 0)}) {
    EXPECT_EQ(KindOf(Run(call)), ErrorKind::kUnsupported);
  }
  EXPECT_THAT(backend_.compared, IsEmpty());
}

}  // namespace
}  // namespace syncline::backends
