"""Two programs of one client, as fast as they can, under the one limit that they share.

    pair.py GIB COMMAND...     starts COMMAND twice, has both fill up, prints both counts

Runs inside one `vgpu run`.
"""

import subprocess
import sys

piece, command = sys.argv[1], sys.argv[2:]
programs = [
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
]
for program in programs:
    program.stdin.write("total\n")
    program.stdin.flush()
    program.stdout.readline()
# Both are told before either has answered.
for program in programs:
    program.stdin.write(f"fill {piece}\n")
    program.stdin.flush()
print(*(program.stdout.readline().strip() for program in programs), flush=True)
sys.stdin.read()
for program in programs:
    program.stdin.close()
sys.exit(max(program.wait() for program in programs))
