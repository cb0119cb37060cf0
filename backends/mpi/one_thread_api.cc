#include "backends/mpi/one_thread_api.h"

#include <climits>
#include <cstdio>

namespace syncline::mpi {
namespace {

// No library's error code.
constexpr int kStuck = INT_MAX;

const MpiApi* library = nullptr;
CallOnOneThread call_on_one_thread = nullptr;

// The function of the table that stands for the library's `kMember`. As the table's type names all
// arguments, one template serves all members.
template <auto kMember>
struct OnOneThread;

template <typename... Args, int (*MpiApi::*kMember)(Args...)>
struct OnOneThread<kMember> {
  static int Call(Args... args) {
    int result = kStuck;
    call_on_one_thread([&] { result = (library->*kMember)(args...); });
    return result;
  }
};

int ErrorString(int error, char* text, size_t size) {
  if (error != kStuck) return OnOneThread<&MpiApi::error_string>::Call(error, text, size);
  std::snprintf(text, size, "the thread that calls MPI is stuck in a call that was given up");
  return kMpiSuccess;
}

int IsProcessFailure(int error) {
  return error == kStuck ? 0 : OnOneThread<&MpiApi::is_process_failure>::Call(error);
}

// Replaces the functions, unless the library does not have them.
template <auto... kMembers>
void Replace(MpiApi& api) {
  const auto replace = [](auto& function, auto* replacement) {
    if (function != nullptr) function = replacement;
  };
  (replace(api.*kMembers, &OnOneThread<kMembers>::Call), ...);
}

}  // namespace

const MpiApi* MakeOneThreadApi(const MpiApi& api, CallOnOneThread call) {
  library = &api;
  call_on_one_thread = call;
  static MpiApi table;
  table = api;  // Its constants, such as comm_world(), are no calls of MPI.
  Replace<&MpiApi::library_version, &MpiApi::initialized, &MpiApi::finalized, &MpiApi::init_thread,
          &MpiApi::query_thread, &MpiApi::is_thread_main, &MpiApi::finalize, &MpiApi::comm_rank,
          &MpiApi::comm_size, &MpiApi::comm_test_inter, &MpiApi::comm_create_group,
          &MpiApi::before_finalize, &MpiApi::comm_dup, &MpiApi::comm_idup,
          &MpiApi::comm_return_errors, &MpiApi::comm_free, &MpiApi::world_ranks,
          &MpiApi::tag_upper_bound, &MpiApi::ibcast, &MpiApi::iallgather, &MpiApi::isend,
          &MpiApi::irecv, &MpiApi::test, &MpiApi::cancel, &MpiApi::is_fault_tolerant,
          &MpiApi::comm_revoke, &MpiApi::comm_shrink, &MpiApi::comm_agree>(table);
  table.error_string = &ErrorString;
  table.is_process_failure = &IsProcessFailure;
  return &table;
}

}  // namespace syncline::mpi
