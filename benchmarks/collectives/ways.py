"""The ways in which calls are timed."""

GATED = "gated"  # All ranks pass a gate before each call: the latency of one call.
IN_A_ROW = "in-a-row"  # As programs make them: each call as soon as the one before has returned.

WAYS = (GATED, IN_A_ROW)
