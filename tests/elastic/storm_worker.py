"""Says once who it is, then shows that it lives, until the job is to end.

storm_worker.py LOG END: appends a line of JSON to LOG, and succeeds once there is a file END.
"""

import json
import os
import sys
import time


def main(log, end):
    names = {"round": "SYNCLINE_ROUND", "rank": "RANK", "world": "WORLD_SIZE", "node": "GROUP_RANK"}
    facts = {name: int(os.environ[variable]) for name, variable in names.items()}
    with open(log, "ab", buffering=0) as file:
        line = json.dumps({**facts, "pid": os.getpid()}) + "\n"
        file.write(line.encode())  # In one piece, hence whole.
    while not os.path.exists(end):
        os.utime(os.environ["SYNCLINE_HEARTBEAT_FILE"])
        time.sleep(0.05)


main(*sys.argv[1:])
