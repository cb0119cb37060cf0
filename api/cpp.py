"""How every binding calls C++: names, types, literals and calls.

A method `all_reduce` calls AllReduce of the C++ class of the same name, a property `rank` calls
rank() or reads a field (see FIELDS), a static method calls the static function. Where the C++
differs in shape, a function of api/adapters.h stands in between: see ADAPTED.
"""

from __future__ import annotations

from datetime import timedelta

import stub
from stub import Handle, Method, Type

# The methods that call api::<Class><Method>(self, arguments...) of api/adapters.h instead of
# the C++ class itself.
ADAPTED = {
    "Store.get",
    "Store.compare_set",
    "Store.wait",
    "Store.delete_key",
    "Store.list_keys",
    "Store.num_keys",
    "Store.multi_get",
    "HashStore.create",
    "FileStore.create",
    "TCPStore.create",
    "PrefixStore.create",
    "Work.wait",
    "ProcessGroup.all_gather_bytes",
    "ProcessGroup.broadcast_bytes",
    "ProcessGroup.gather_bytes",
    "ProcessGroup.scatter_bytes",
    "ProcessGroup.send_bytes",
    "ProcessGroup.recv_bytes",
    "ProcessGroup.split",
    "ProcessGroup.shrink",
    "World.init",
    "World.new_group",
    "CommHook.all_reduce",
    "CommHook.float16_compress",
    "CommHook.bfloat16_compress",
    "CommHook.power_sgd",
    "CommHook.batched_power_sgd",
    "CommHook.quantize_per_tensor",
    "CommHook.quantize_per_channel",
    "CommHook.top_k",
    "CommHook.post_local_sgd",
    "Reducer.begin_step",
    "Reducer.count_active",
    "Reducer.create",
    "Reducer.gradient",
    "Reducer.is_used",
    "Reducer.mark_ready_sparse",
    "Reducer.sparse_indices",
    "Reducer.sparse_values",
    "Reducer.stats",
    "ReducerStats.table",
    "Preemption.create",
}

# Methods, as torch has them, that are accessors in C++ like those of properties.
ACCESSORS = {
    "ProcessGroup.name",
    "ProcessGroup.rank",
    "ProcessGroup.size",
    "Work.source_rank",
}

# Properties that are fields of a C++ struct.
FIELDS = {
    f"ReducerStats.{name}"
    for name in (
        "steps hook bucket_bytes bucket_parameters ready start end backward_end step_end own_time "
        "copy_time "
        "total_overlap_share"
    ).split()
} | {
    f"GradBucket.{name}" for name in "index count step divisor buffer gradients parameters".split()
}


def pascal(name: str) -> str:
    """all_reduce -> AllReduce; SUM -> Sum."""
    return "".join(part.capitalize() for part in name.split("_"))


def cpp_type(type: Type) -> str:
    """The C++ type by which a conversion is chosen."""
    if type.kind == "word":
        return stub.VOCABULARY[type.name]
    if type.kind == "enum":
        return type.name
    return f"{'Nullable' if type.kind == 'nullable' else 'std::shared_ptr'}<{type.name}>"


def cpp_value(value: object, type: Type) -> str:
    """A default other than None, which stands for itself in every language."""
    if type.kind == "enum":
        return f"{type.name}::k{pascal(str(value))}"
    if isinstance(value, timedelta):
        return f"absl::Seconds({value // timedelta(seconds=1)})"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return cpp_string(value)
    return "{}" if value == [] else repr(value)


def cpp_string(text: str) -> str:
    """A literal of `text`, over as many lines as it has."""
    if "\n" in text:
        return f'R"doc({text})doc"'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def cpp_call(handle: Handle, method: Method) -> str:
    """The expression that makes the call."""
    full_name = f"{handle.name}.{method.name}"
    arguments = [argument.name for argument in method.arguments]
    if full_name in ADAPTED:
        function = f"api::{handle.name}{pascal(method.name)}"
        arguments = ([] if method.kind == "static" else ["self"]) + arguments
    elif full_name in FIELDS:
        return f"self.{method.name}"
    elif method.kind == "static":
        function = f"{handle.name}::{pascal(method.name)}"
    else:
        is_accessor = method.kind == "property" or full_name in ACCESSORS
        function = f"self.{method.name if is_accessor else pascal(method.name)}"
    return f"{function}({', '.join(arguments)})"
