"""The fixtures of the tests in this folder."""

from launch.options.clusters_for_tests import folder, mpiexec, mpirun, slurm

__all__ = ["folder", "mpiexec", "mpirun", "slurm"]
