// What the package syncline needs of C++ and the description of the public API does not have.
#ifndef SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_
#define SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds to `module`, where DefineApi has been:
//
//   Work._on_complete(callback)  calls it, once and without arguments, when the operation has
//                                finished: now, or on the thread of C++ that finishes it
//   _task_local_rank()           this process's rank among those of its host, by the launcher that
//                                has started it (see core/join/cluster_task.h); None if it does not
//                                say
//   _empty_shared(shape, dtype)  a new tensor that peers can map: see include/syncline/shared_memory.h
//   _empty_on_device(shape, dtype, index, registered)
//                                a new tensor of a CUDA device: see include/syncline/device_memory.h
//   _copy_to_device(to, array)   enqueues a copy of a contiguous array of a device to a TensorView
//                                of as many bytes there
//   _write_segment(size, parts, leased=False)
//                                the descriptor of a new segment with these parts, which are pairs of
//                                an offset and a buffer, in the order of their offsets; the caller
//                                closes it
//   _address(buffer)             where the bytes of a contiguous buffer are
//   _shared_place(address, size) where these bytes are in shared memory: (descriptor, offset, size of
//                                the memory), or None. The descriptor is the memory's own. Its name
//                                stands in its place if it has one
//   _keep_contents(address)      see KeepContents of core/tensor/shared_place.h
//   _map_shared(descriptor, size, leased=False)
//                                the bytes of a segment that another process has handed over; takes
//                                over the descriptor
//   _idle_mappings()             see IdleMappingCount of core/tensor/shared_place.h
//   _use_segment_manager(manager), _segment_manager(), _write_named(size, parts),
//   _make_named(size), _carry_named(name), _drop_named(name, sender),
//   _discard_named(name, sender), _map_named(name, sender, pid, size), _leave_segments()
//                                see core/segments/segment_client.h
//   _chosen_interface_address()  the first of ChosenInterfaceAddresses of core/join/host_address.h; None if no
//                                variable chooses
//   _shared_handle(tensor), _open_shared(handle)  see include/syncline/shared_memory.h
//   _part_of(whole, offset, dtype, shape)  a tensor in these bytes
//   _parts(array, count)         `count` equal parts of a contiguous array, one-dimensional views
void DefinePrivateApi(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_
