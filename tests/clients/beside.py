"""A holder of 1 GiB and a watcher in one container.

    beside.py CLIENT     prints what watch.py CLIENT sees, then the holder's pid

Runs inside one `vgpu run`.
"""

import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
holder = subprocess.Popen(
    [sys.executable, os.path.join(here, "program.py"), "cuda-bindings"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
holder.stdin.write("take 1\n")
holder.stdin.flush()
answer = holder.stdout.readline().strip()
if answer != "took":
    sys.exit(f"the holder did not get its memory: {answer}")
subprocess.run([sys.executable, os.path.join(here, "watch.py"), sys.argv[1]], check=True)
print(holder.pid, flush=True)
sys.stdin.read()
holder.stdin.close()
sys.exit(holder.wait())
