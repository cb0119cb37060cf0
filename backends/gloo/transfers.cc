#include "backends/gloo/transfers.h"

namespace syncline::gloo_backend {

void Transfers::Send(int to, const void* data, size_t nbytes) {
  if (nbytes == 0) return;
  // Gloo's interface takes all memory as writable, but it only reads what it sends.
  sends_.push_back(context_.createUnboundBuffer(const_cast<void*>(data), nbytes));
  sends_.back()->send(to, slot_);
}

void Transfers::Receive(int from, void* data, size_t nbytes) {
  if (nbytes == 0) return;
  receives_.push_back(context_.createUnboundBuffer(data, nbytes));
  receives_.back()->recv(from, slot_);
}

absl::Status Transfers::Wait() {
  for (auto& buffer : receives_) buffer->waitRecv();
  for (auto& buffer : sends_) buffer->waitSend();
  receives_.clear();
  sends_.clear();
  return absl::OkStatus();
}

}  // namespace syncline::gloo_backend
