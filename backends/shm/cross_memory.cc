#include "backends/shm/cross_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/hmac.h"
#include "syncline/check.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// Reads from the process `pid`: the number at `nonce_address`, and `bytes` at `address`.
absl::Status ReadOf(int pid, uint64_t nonce_address, uint64_t& nonce, uint64_t address, void* to,
                    size_t bytes) {
  const iovec local[] = {{&nonce, sizeof(nonce)}, {to, bytes}};
  const iovec remote[] = {{reinterpret_cast<void*>(nonce_address), sizeof(nonce)},
                          {reinterpret_cast<void*>(address), bytes}};
  const ssize_t moved = process_vm_readv(pid, local, 2, remote, 2, 0);
  if (moved == static_cast<ssize_t>(sizeof(nonce) + bytes)) return absl::OkStatus();
  // Short where a page after the first cannot be read.
  return BackendError(absl::StrCat("process_vm_readv of process ", pid, ": ",
                                   moved < 0 ? std::strerror(errno) : "a page cannot be read"));
}

std::string YamaScope() {
  std::string scope;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

// What a process can do about the refusal of another's memory.
std::string Advice() {
  const std::string scope = YamaScope();
  if (scope.empty() || scope == "0") return "";
  if (scope != "1") return absl::StrCat(" (Yama's ptrace_scope is ", scope, ")");
  return " (Yama's ptrace_scope is 1: SYNCLINE_CMA=ptracer on all ranks lets processes of the user "
         "attach to them)";
}

}  // namespace

absl::StatusOr<CmaPolicy> ReadCmaPolicy() {
  const std::string value = absl::AsciiStrToLower(base::GetEnv("SYNCLINE_CMA").value_or("on"));
  if (value == "on") return CmaPolicy::kOn;
  if (value == "off") return CmaPolicy::kOff;
  if (value == "ptracer") return CmaPolicy::kPtracer;
  return ArgumentError(absl::StrCat("SYNCLINE_CMA must be on, off or ptracer, not '", value, "'"));
}

absl::Status CheckCma() {
  SYNCLINE_ASSIGN_OR_RETURN(const CmaPolicy policy, ReadCmaPolicy());
  if (policy == CmaPolicy::kOff) return UnsupportedError("SYNCLINE_CMA is off");
  // A process may always read itself, unless seccomp forbids the call.
  const uint64_t number = 1;
  uint64_t read = 0;
  SYNCLINE_RETURN_IF_ERROR(
      ReadOf(getpid(), reinterpret_cast<uint64_t>(&number), read, 0, nullptr, 0));
  const std::string scope = YamaScope();
  const bool is_restricted = scope == "2" || scope == "3" || scope == "1";
  if (is_restricted && !(scope == "1" && policy == CmaPolicy::kPtracer)) {
    return UnsupportedError(absl::StrCat("the kernel may refuse it", Advice()));
  }
  return absl::OkStatus();
}

void CrossMemory::Publish() {
  if (policy_ == CmaPolicy::kOff) return;
  if (policy_ == CmaPolicy::kPtracer) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const std::string random = base::RandomBytes(sizeof(nonce_));
  std::memcpy(&nonce_, random.data(), sizeof(nonce_));
  RankRegion& own = layout_.region(peers_.rank());
  own.nonce = nonce_;
  own.nonce_address = reinterpret_cast<uint64_t>(&nonce_);
}

void CrossMemory::Probe() {
  can_read_all_ = is_readable();
  for (int rank = 0; rank < layout_.size() && is_readable(); ++rank) {
    if (rank == peers_.rank()) continue;
    const absl::Status status = layout_.region(rank).nonce_address == 0
                                    ? BackendError("it has SYNCLINE_CMA=off")
                                    : Read(rank, 0, nullptr, 0);
    can_read_[rank] = status.ok();
    if (status.ok() || !can_read_all_) continue;
    can_read_all_ = false;
    Log(LogLevel::kInfo, absl::StrCat("shm: rank ", peers_.rank(), " cannot read the memory of ",
                                      peers_.Describe(rank),
                                      ", so data are copied through shared "
                                      "memory: ",
                                      status.message(), Advice()));
  }
}

absl::Status CrossMemory::Read(int rank, uint64_t address, void* to, size_t bytes) const {
  SYNCLINE_DCHECK(bytes <= kMaxBytes);
  const RankRegion& region = layout_.region(rank);
  uint64_t nonce = 0;
  SYNCLINE_RETURN_IF_ERROR(
      ReadOf(peers_.pid(rank), region.nonce_address, nonce, address, to, bytes));
  if (nonce == region.nonce) return absl::OkStatus();
  return BackendError("its pid names another process here: do the ranks see other pids?");
}

}  // namespace syncline::shm
