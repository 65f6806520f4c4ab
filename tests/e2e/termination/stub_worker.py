"""A worker with two children of their own sessions that are deaf to every signal but SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEAF = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(300)
"""


def main(job: Path) -> None:
    behaviour = json.loads(job.read_text())
    children = [
        subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(2 if behaviour != "quick" else 0)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (job.parent / "attempts").open("a") as attempts:
        attempts.write(f"{os.getpid()}\n")
    if behaviour == "dies":
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does to a process when memory runs out
    if behaviour != "quick":
        time.sleep(300)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
