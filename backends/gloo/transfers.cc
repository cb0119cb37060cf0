#include "backends/gloo/transfers.h"

namespace syncline {

void Transfers::Send(int to, const void* data, size_t nbytes) {
  if (nbytes == 0) return;
  // Gloo takes all memory for writable; it only reads what is sent.
  leaving_.push_back(context_.createUnboundBuffer(const_cast<void*>(data), nbytes));
  leaving_.back()->send(to, slot_);
}

void Transfers::Receive(int from, void* data, size_t nbytes) {
  if (nbytes == 0) return;
  arriving_.push_back(context_.createUnboundBuffer(data, nbytes));
  arriving_.back()->recv(from, slot_);
}

void Transfers::Wait() {
  for (auto& buffer : arriving_) buffer->waitRecv();
  for (auto& buffer : leaving_) buffer->waitSend();
  arriving_.clear();
  leaving_.clear();
}

}  // namespace syncline
