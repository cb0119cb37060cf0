// Included by NCCL's header, which uses nothing of it; for nccl_header_test.
