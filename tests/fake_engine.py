"""An engine for the comparison that computes nothing: python fake_engine.py MODE [SECONDS]

MODE  answer: every run takes SECONDS, as it says; hang: runs never end; die: the first run ends the
      process; refuse: cannot be loaded; late: dies at the third run; busy: polls while it has
      nothing to do
"""

import json
import os
import sys
import threading
import time


def spin():
    while True:
        pass


def main(mode, seconds=1.0):
    settings = json.loads(sys.stdin.readline())
    if mode == "refuse":
        sys.stdout.write(json.dumps({"error": "it has no " + settings["model"]}) + "\n")
        return
    if mode == "busy":
        threading.Thread(target=spin, daemon=True).start()
    sys.stdout.write(json.dumps({"engine": f"fake {os.getpid()}"}) + "\n")
    sys.stdout.flush()
    for number, line in enumerate(sys.stdin, 1):
        json.loads(line)
        if mode == "hang":
            time.sleep(60)
        if mode == "die" or (mode == "late" and number == 3):
            sys.stderr.write("out of luck\n")
            sys.stderr.flush()
            os._exit(3)
        sys.stdout.write(json.dumps({"seconds": seconds / number}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
