"""Messages of more than 2 GiB."""

import pytest

from tests.mpi.runtime import ranks


@pytest.mark.parametrize("family", ranks.FOUND)
def test_a_message_of_more_than_2_gib(family, folder):
    status, output = ranks.run(family, "large", folder)
    assert status == 0, output
    ranks.check(output, family)
