"""What a wheel and the source distribution say of Syncline."""

METADATA = [
    "Summary: Distributed training for any framework: collectives, reducer, launcher",
    # Of Syncline and of all that is linked in: see THIRD_PARTY.md.
    "License-Expression: Apache-2.0 AND BSD-3-Clause AND MIT AND Zlib AND GPL-3.0-or-later WITH GCC-exception-3.1",
    "Keywords: distributed training,collectives,all-reduce,torch.distributed,launcher",
    "Classifier: Development Status :: 3 - Alpha",
    "Classifier: Intended Audience :: Developers",
    "Classifier: Operating System :: POSIX :: Linux",
    "Classifier: Programming Language :: C++",
    "Classifier: Programming Language :: Python :: 3 :: Only",
    "Classifier: Programming Language :: Python :: 3.11",
    "Classifier: Programming Language :: Python :: 3.12",
    "Classifier: Programming Language :: Python :: 3.13",
    "Classifier: Programming Language :: Python :: 3.14",
    "Classifier: Programming Language :: Python :: Implementation :: CPython",
    "Classifier: Topic :: System :: Distributed Computing",
    "Classifier: Typing :: Typed",
    "Requires-Python: >=3.11",
]
