// FAKE_CUDA_PROTECT: memory of devices that the host cannot touch, as on a machine with a GPU.
#ifndef SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_PROTECTION_H_
#define SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_PROTECTION_H_

#include <cstddef>

namespace fake_cuda {

// Device memory lies in pages of its own that nobody may access. A stream's thread that does so, in
// an item, faults, and the pages are opened until the item ends; any other thread ends the process
// with a message. So an access by the host goes unnoticed only while an item uses the same memory.
// Accesses by system calls fail with EFAULT.

// Whether the setting is on; installs the handler of faults if it is. Once, before what follows.
bool Protects();

// Pages for `bytes` bytes, which may be accessed until Protect. Null if there is no memory.
void* MapPages(size_t bytes);
void UnmapPages(void* address, size_t bytes);
void Protect(void* address, size_t bytes);

// For a stream's thread, without the simulator's mutex: closes what its item has opened.
void CloseOpened();

}  // namespace fake_cuda

#endif  // SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_PROTECTION_H_
