"""Runs every CUDA client under `vgpu run` on the simulated GPUs and checks what it sees and gets.

Runs inside `vgpu sim` with one GPU of 16 GiB, or on a real GPU without other users. A client of program.py must see its limit as the GPU's size, fill up to
it, be refused past it, free and go on; two at once must not pass a limit that they share. A client of watch.py must
see the container's share, use and processes. Prints a line for each, and "N passed" at the end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

GIB = 1 << 30
PIECE = 0.125
HERE = os.path.dirname(os.path.abspath(__file__))
arguments = argparse.ArgumentParser()
arguments.add_argument("--bin", required=True, help="where vgpu is")
arguments.add_argument("--limit", type=int, default=2, metavar="GIB", help="of each container")
arguments.add_argument("--torch", help="a Python with PyTorch")
arguments.add_argument("--cuda10", help="a Python with CuPy and MXNet for CUDA 10")
arguments.add_argument("--standins", help="libraries that those are linked to, made by standins.py")
arguments.add_argument("--jcuda", help="a folder with JCuda and the program, compiled")
arguments.add_argument("--cudarc", help="the cudarc client, built")
arguments.add_argument("--nvcc", help="the program of nvcc.cu, built")
arguments.add_argument("--without", action="append", default=[], metavar="CLIENT=REASON", help="cannot run here")
arguments.add_argument("only", nargs="*")
ARGS = arguments.parse_args()
VGPU = os.path.join(ARGS.bin, "vgpu")
LIMIT = ARGS.limit * GIB
# PyTorch and MXNet load a thousand modules each, and they count.
LARGE = {"torch": 3, "triton": 3, "mxnet": 3}
# MXNet takes ten seconds of a core to start; one of it is enough.
SLOW = ("mxnet",)
WITHOUT = dict(entry.split("=", 1) for entry in ARGS.without)
PROGRAM = os.path.join(HERE, "program.py")

# CuPy and MXNet find the libraries of CUDA 10 where a program finds any: behind the simulated driver's own.
CUDA10 = ["env", f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}:{ARGS.standins}", ARGS.cuda10, PROGRAM]

ALLOCATING = {
    "cuda-bindings": [sys.executable, PROGRAM, "cuda-bindings"],
    "cuda-core": [sys.executable, PROGRAM, "cuda-core"],
    "numba": [sys.executable, PROGRAM, "numba"],
    "pycuda": [sys.executable, PROGRAM, "pycuda"],
    "torch": [ARGS.torch, PROGRAM, "torch"],
    "triton": [ARGS.torch, PROGRAM, "triton"],
    "cupy": [*CUDA10, "cupy"],
    "mxnet": [*CUDA10, "mxnet"],
    "jcuda": ["java", "-cp", f"{ARGS.jcuda}/classes:{ARGS.jcuda}/*", "Program"],
    "cudarc": [ARGS.cudarc],
    # On a genuine driver only, when asked for by name.
    "cudart": [sys.executable, PROGRAM, "cudart"],
    "nvcc": [ARGS.nvcc],
}
GENUINE = ("cudart", "nvcc")
WATCHING = ("nvidia-ml-py", "nvitop", "gpustat", "nvtop")


class Wrong(Exception):
    """A client saw or got something else than it had to."""


def expect(what, seen, right):
    if not right:
        raise Wrong(f"{what}: {seen}")


def top():
    told = subprocess.run(
        [VGPU, "top", "--once", "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    expect("vgpu top", told.stderr.strip(), told.returncode == 0)
    return json.loads(told.stdout)


def booked(name):
    return sum(
        device["used_bytes"]
        for entry in top()["containers"]
        if entry["name"] == name
        for device in entry["devices"]
    )


def limit_of(client):
    return LIMIT * LARGE.get(client, 1)


class Contained:
    """A command under `vgpu run`, told what to do line by line."""

    def __init__(self, name, limit, command):
        self.process = subprocess.Popen(
            [VGPU, "run", "--name", name, "--gpumem", f"{limit >> 20}Mi", "--", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        # All of it: a command outlives a killed `vgpu run`.
        self.watchdog = threading.Timer(120, os.killpg, (self.process.pid, signal.SIGKILL))
        self.watchdog.start()

    def tell(self, words):
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.hear(words)

    def hear(self, what):
        answer = self.process.stdout.readline().strip()
        if not answer:
            os.killpg(self.process.pid, signal.SIGKILL)
            said = self.process.stderr.read()
            raise Wrong(f"ended at {what!r}: {said.strip()[-1500:]}")
        return answer

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        said = self.process.stderr.read()
        self.watchdog.cancel()
        expect("exit code", f"{code} {said[-1500:]}", code == 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watchdog.cancel()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def alone(client, command):
    name = f"{client}-alone"
    limit = limit_of(client)
    with Contained(name, limit, command) as program:
        total = int(program.tell("total"))
        expect("the limit as the GPU's size", total, total == limit)
        count = int(program.tell(f"fill {PIECE}"))
        # A context and a module of a client's own stand beside the pieces; nothing else of size does.
        expect("pieces up to the limit", count, limit * 0.6 <= count * PIECE * GIB <= limit)
        used = booked(name)
        expect("books", used, count * PIECE * GIB <= used <= limit)
        refusal = program.tell(f"take {PIECE}")
        expect("the refusal", refusal, refusal.startswith("refused"))
        record = subprocess.run([VGPU, "oom", name], capture_output=True, text=True, check=False).stdout
        expect("a record of it", record, "cuMem" in record)
        expect("free", "", program.tell("drop") == "done")
        again = program.tell(f"take {PIECE}")
        expect("a piece after one was freed", again, again == "took")
        expect("a kernel", "", program.tell("spin") == "done")
        program.end()
    return f"{count} pieces of 128 MiB"


def together(client, command):
    name = f"{client}-pair"
    before = highest = top()["gpus"][0]["used_bytes"]
    with Contained(name, limit_of(client), [sys.executable, os.path.join(HERE, "pair.py"), str(PIECE), *command]) as pair:
        done = threading.Event()

        def watch():
            nonlocal highest
            while not done.is_set():
                highest = max(highest, top()["gpus"][0]["used_bytes"])
                time.sleep(0.02)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            counts = [int(count) for count in pair.hear("fill").split()]
        finally:
            done.set()
            watcher.join()
        highest = max(highest, top()["gpus"][0]["used_bytes"])
        # The driver's figure, not our own accounts.
        expect("two together", f"{counts}, {highest - before} bytes on the GPU", sum(counts) > 0 and highest - before <= limit_of(client))
        pair.end()
    return f"two together {counts[0]} + {counts[1]}, at most {(highest - before) / GIB:.2f} GiB on the GPU"


def watching(client):
    name = f"{client}-seen"
    with Contained(name, LIMIT, [sys.executable, os.path.join(HERE, "beside.py"), client]) as both:
        seen = json.loads(both.hear("what it sees"))
        pid = int(both.hear("the holder's pid"))
        both.end()
    expect("the limit as the GPU's size", seen, seen["total"] == LIMIT)
    expect("what is used", seen, GIB <= seen["used"] <= LIMIT)
    expect("the container's one process", seen, seen["pids"] == [pid])
    expect("GPUs", seen, seen["gpus"] == 1)
    return f"{seen['used'] / GIB:.2f} of {seen['total'] / GIB:.2f} GiB, process {pid}"


def main():
    passed, failed = 0, []
    cases = [(client, kind) for client in ALLOCATING for kind in (alone, together) if kind is alone or client not in SLOW]
    cases += [(client, watching) for client in WATCHING]
    for client, kind in cases:
        title = f"{client} {kind.__name__}"
        if (client not in ARGS.only) if ARGS.only else (client in GENUINE):
            continue
        if client in WITHOUT:
            print(f"skipped {title}: {WITHOUT[client]}", flush=True)
            continue
        started = time.monotonic()
        try:
            what = kind(client, ALLOCATING[client]) if client in ALLOCATING else kind(client)
        except (Wrong, ValueError, OSError, subprocess.SubprocessError) as problem:
            failed.append(title)
            print(f"FAILED {title}: {problem}", flush=True)
            continue
        passed += 1
        print(f"ok {title}: {what} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
