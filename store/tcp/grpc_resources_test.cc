#include "store/tcp/grpc_resources.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "core/testing/faults.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::Status Serve() {
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  return TCPStore::Create(options).status();
}

// One test: whatever has been there once is not looked for again.
TEST(GrpcResourcesTest, WhatIsLackingIsAnErrorBeforeGrpcIsUsedAndOnceItIsThereAllIsWell) {
  rlimit few;
  ASSERT_EQ(getrlimit(RLIMIT_NPROC, &few), 0);
  few.rlim_cur = std::min<rlim_t>(few.rlim_cur, 4095);  // So that threads are tried out.
  ASSERT_EQ(setrlimit(RLIMIT_NPROC, &few), 0);
  for (const int nth : {1, 2, 9, 14}) {
    const ScopedFault no_threads("pthread_create", nth);
    EXPECT_THAT(Message(CheckGrpcResources()), HasSubstr("cannot start a thread for gRPC")) << nth;
  }
  {
    const ScopedFault no_threads("pthread_create", 3);
    EXPECT_THAT(Message(Serve()), HasSubstr("cannot start a thread for gRPC"));
  }
  {
    const NoDescriptors lack;
    EXPECT_THAT(Message(CheckGrpcResources()), HasSubstr("raise the limit (ulimit -n)"));
    EXPECT_EQ(KindOf(Serve()), ErrorKind::kBackend);
  }
  EXPECT_TRUE(CheckGrpcResources().ok());
  EXPECT_TRUE(Serve().ok());
}

}  // namespace
}  // namespace syncline::tcp_store
