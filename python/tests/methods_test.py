"""Methods of the extension's classes take their arguments as those of Python do."""

import numpy
import pytest
import syncline as dist
from syncline import ReduceOp

SIGNATURE = r"all_reduce\(tensor, op=, timeout=, factor=\): "


@pytest.fixture
def group():
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_arguments_are_given_by_position_by_name_or_not_at_all(group):
    tensor = numpy.ones(3)
    later = "".join(["fac", "tor"])  # A name that is no literal.
    group.all_reduce(tensor)
    group.all_reduce(tensor, ReduceOp.SUM, None, 1.0)
    group.all_reduce(tensor, timeout=None, op=ReduceOp.MAX)
    group.all_reduce(op=ReduceOp.PREMUL_SUM, tensor=tensor, **{later: 2.0})
    assert tensor.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "'tensor' is missing"),
        ((), {"op": ReduceOp.SUM}, "'tensor' is missing"),
        ((None,) * 5, {}, "5 arguments were given by position"),
        ((None,), {"tensor": None}, "'tensor' was given twice"),
        ((None,), {"tensors": None}, "there is no 'tensors'"),
        ((None,), {"é'": None}, 'there is no "é\'"'),
    ],
)
def test_a_call_that_does_not_fit_says_what_is_wrong(group, args, kwargs, message):
    with pytest.raises(TypeError, match=SIGNATURE + message):
        group.all_reduce(*args, **kwargs)


def test_an_argument_of_the_wrong_type_is_named(group):
    with pytest.raises(TypeError, match=r"op must be a ReduceOp, not int: one of ReduceOp.SUM, "):
        group.all_reduce(numpy.ones(1), 0)
    with pytest.raises(TypeError, match=r"outputs\[1\] must be an array"):
        group.all_gather([numpy.ones(1), 3], numpy.ones(1))


def test_a_method_needs_an_object_of_its_class(group):
    with pytest.raises(TypeError, match="doesn't apply to a 'int' object"):
        dist.ProcessGroup.barrier(3)
    with pytest.raises(TypeError, match="needs an argument"):
        dist.ProcessGroup.barrier()
    for use in (dist.ProcessGroup.barrier, dist.ProcessGroup.backend.__get__):
        with pytest.raises(TypeError, match="ProcessGroup was never made"):
            use(dist.ProcessGroup.__new__(dist.ProcessGroup))


def test_a_method_of_a_base_class_takes_objects_of_derived_ones():
    store = dist.HashStore()
    dist.Store.set(store, "key", b"value")
    assert dist.Store.get(store, "key") == b"value"
    prefixed = dist.PrefixStore("a", store)
    prefixed.set("b", b"c")
    assert store.get("a/b") == b"c"


def test_a_property_cannot_be_set(group):
    with pytest.raises(AttributeError, match="backend"):
        group.backend = "gloo"
    assert group.backend == "local"


def test_methods_and_properties_are_documented():
    method = dist.ProcessGroup.all_reduce
    assert method.__name__ == "all_reduce"
    assert method.__doc__.startswith("all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, ")
    assert dist.ProcessGroup.ranks.__doc__.startswith("The world's rank of each member, in ")
    assert dist.ProcessGroup.rank.__doc__ == "rank() -> int\n\nThis rank's number in the group."
