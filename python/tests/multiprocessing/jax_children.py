"""What the processes of jax_arrays_test run."""

import jax


def add_one(inbox, outbox):
    while True:
        array = inbox.get()
        if array is None:
            return
        assert isinstance(array, jax.Array)
        outbox.put(array + 1)
        del array
