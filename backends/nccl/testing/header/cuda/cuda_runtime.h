// What NCCL's header needs of CUDA's, for nccl_header_test.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_HEADER_CUDA_CUDA_RUNTIME_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_HEADER_CUDA_CUDA_RUNTIME_H_

#include <stddef.h>

typedef struct CUstream_st* cudaStream_t;

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_HEADER_CUDA_CUDA_RUNTIME_H_
