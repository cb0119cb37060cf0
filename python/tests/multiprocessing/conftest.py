"""What the tests share: the strategy by which memory is shared."""

import pytest
import syncline.multiprocessing as mp


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    """Each strategy in turn, for what this process and those that it starts send."""
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy("file_descriptor")
