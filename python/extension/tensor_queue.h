// TensorQueue for the package syncline.
#ifndef SYNCLINE_PYTHON_EXTENSION_TENSOR_QUEUE_H_
#define SYNCLINE_PYTHON_EXTENSION_TENSOR_QUEUE_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds the class _TensorQueue to `module`, on which python/syncline/tensor_queue.py is built:
//
//   _TensorQueue.create(capacity, max_messages), _TensorQueue.open(descriptor),
//   _TensorQueue.open_handle(handle), handle()
//   put(arrays, note, seconds) -> bool   False: a timeout; 0 seconds do not wait
//   get(seconds) -> ([TensorView, ...], note), None after a timeout, or False at the end
//   get_into(arrays, seconds) -> note, None or False
//   close(), descriptor, capacity, max_messages, closed
//   stats() -> (messages, bytes, lost_puts, lost_gets)
void DefineTensorQueue(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_TENSOR_QUEUE_H_
