"""`bazel run //launch:run -- ...`: the launcher, with workers that can import syncline."""

import os
import sys


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    runfiles = os.path.dirname(os.path.dirname(folder))
    launcher = os.path.join(folder, "syncline_run")
    env = dict(os.environ, SYNCLINE_RUNFILES=runfiles)

    # Bazel has put its import roots in front of the user's own PYTHONPATH.
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = [path for path in paths if (path + os.sep).startswith(runfiles + os.sep)]
    users = [path for path in paths if path not in ours]

    venv = env.get("VIRTUAL_ENV")
    interpreter = env.get("PYTHON_EXEC") or (venv and os.path.join(venv, "bin", "python"))
    env["PYTHON_EXEC"] = interpreter or sys.executable
    if env["PYTHON_EXEC"] != sys.executable:
        # The packages of the user's own environment, NumPy say, are to win over Bazel's.
        ours = [p for p in ours if os.path.isfile(os.path.join(p, "syncline", "__init__.py"))]
    env["PYTHONPATH"] = os.pathsep.join(ours + users)

    os.chdir(env.get("BUILD_WORKING_DIRECTORY", "."))
    os.execve(launcher, [launcher] + sys.argv[1:], env)


if __name__ == "__main__":
    main()
