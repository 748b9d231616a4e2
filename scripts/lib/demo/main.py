"""The demo's story: starts programs under limits, checks each step, and ends with a table.

Runs inside `vgpu sim`. Every step compares what it sees with what must be; the first that differs ends it.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

GIB = 1 << 30
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/clients/program.py")
arguments = argparse.ArgumentParser()
for flag in ("--bin", "--work", "--port"):
    arguments.add_argument(flag, required=True)
ARGS = arguments.parse_args()
VGPU = os.path.join(ARGS.bin, "vgpu")
BOARD = os.path.join(ARGS.work, "containers")
LIVING = []
RESULTS = []


class Failed(Exception):
    """A step saw something else than it had to."""


def gib(count):
    return f"{count / GIB:.1f} GiB"


def check(step, seen, right):
    RESULTS.append((step, seen, right))
    print(f"  {'ok' if right else 'WRONG'}  {step}: {seen}", flush=True)
    if not right:
        raise Failed(f"{step}: {seen}")


def vgpu(*words):
    done = subprocess.run(
        [VGPU, *words], capture_output=True, text=True, timeout=60,
        env={**os.environ, "VGPU_BOARD": BOARD}, check=False,
    )
    if done.returncode != 0:
        raise Failed(f"vgpu {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Program:
    """A program under `vgpu run`, told what to do line by line."""

    def __init__(self, name, client, gpu, limit):
        self.name, self.client, self.gpu, self.limit = name, client, gpu, limit
        self.process = subprocess.Popen(
            [VGPU, "run", "--name", name, "--gpu", str(gpu), "--gpumem", limit, "--",
             sys.executable, PROGRAM, client],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "VGPU_BOARD": BOARD},
        )
        LIVING.append(self.process)

    def tell(self, words):
        watchdog = threading.Timer(120, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        finally:
            watchdog.cancel()
        if not answer:
            raise Failed(f"{self.name} ended when it was told to {words}")
        return answer


def top():
    return json.loads(vgpu("top", "--once", "--json"))


def container(name):
    found = [entry for entry in top()["containers"] if entry["name"] == name]
    if not found:
        raise Failed(f"vgpu top does not show {name}")
    return found[0]


def used(name):
    return sum(device["used_bytes"] for device in container(name)["devices"])


def metrics():
    """The series of a scrape: name and labels to value."""
    url = f"http://127.0.0.1:{ARGS.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    series = {}
    for line in text.splitlines():
        match = re.match(r"(\w+)\{(.*)\} (\S+)$", line)
        if match:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            series[match[1], labels.get("container"), labels.get("device_uuid")] = float(match[3])
    return series


def eventually(step, what, right, shown=str):
    """Checks what may take a moment to be seen."""
    until = time.monotonic() + 5
    seen = what()
    while not right(seen) and time.monotonic() < until:
        time.sleep(0.02)
        seen = what()
    check(step, shown(seen), right(seen))
    return seen


def story():
    print("\nThree programs start under different limits on two GPUs of 16 GiB", flush=True)
    train = Program("train", "cuda-bindings", 0, "4Gi")
    serve = Program("serve", "cuda-bindings", 0, "8Gi")
    mesh = Program("mesh", "numba", 1, "2Gi")
    for program, size in ((train, 4), (serve, 8), (mesh, 2)):
        total = int(program.tell("total"))
        check(f"{program.name} ({program.client}) reads its limit as the GPU's size", gib(total), total == size * GIB)

    print("\nEach takes memory; one reaches its limit", flush=True)
    for program, words, what in ((serve, "take 6", "takes 6 GiB"), (mesh, "take 1", "takes 1 GiB"),
                                 (mesh, "spin", "runs a kernel")):
        answer = program.tell(words)
        check(f"{program.name} {what}", answer, answer in ("took", "done"))
    answers = [train.tell("take 1") for _ in range(4)]
    check("train takes 1 GiB, four times", ", ".join(answers),
          answers[:3] == ["took"] * 3 and answers[3].startswith("refused") and "OUT_OF_MEMORY" in answers[3])
    record = vgpu("oom", "train")
    print("\n" + "".join(f"    {line}\n" for line in record.splitlines()), flush=True)
    check("vgpu oom lists the holders", "cuMemAlloc", "cuMemAlloc" in record)

    print("\nThe limit is raised while the program runs", flush=True)
    vgpu("set", "train", "--gpumem", "6Gi")
    answer = train.tell("take 1")
    check("vgpu set train --gpumem 6Gi, and train goes on", answer, answer == "took")
    total = int(train.tell("total"))
    check("train reads the new limit", gib(total), total == 6 * GIB)

    print("\nOne is killed with SIGKILL", flush=True)
    before = used("serve")
    victim = container("serve")["processes"][0]
    killed_at = time.monotonic()
    os.kill(victim["host_pid"] or victim["pid"], signal.SIGKILL)
    serve.process.wait(timeout=10)
    took = (time.monotonic() - killed_at) * 1000
    check("vgpu run answers as a shell does", f"exit code {serve.process.returncode}",
          serve.process.returncode in (137, -signal.SIGKILL))
    eventually("its memory is free at once", lambda: gib(sum(
        device["used_bytes"] for entry in top()["containers"] if entry["name"] == "serve" for device in entry["devices"]
    )), lambda seen: seen == gib(0))
    # The driver gives a dead process's memory back a moment after the process is gone.
    eventually(f"the GPU has it back ({gib(before)} before, seen after {took:.0f} ms)",
               lambda: top()["gpus"][0]["used_bytes"], lambda used: used < 5 * GIB,
               lambda used: f"{gib(used)} in use")

    print("\nPrometheus sees the same", flush=True)
    monitor = subprocess.Popen(
        [os.path.join(ARGS.bin, "vgpu-monitor"), "--root", BOARD, "--metrics-addr", f"127.0.0.1:{ARGS.port}"],
        stdout=subprocess.DEVNULL, stderr=open(os.path.join(ARGS.work, "monitor.log"), "w"),
    )
    LIVING.append(monitor)
    until = time.monotonic() + 10
    while True:
        try:
            metrics()
            break
        except OSError:
            if time.monotonic() > until or monitor.poll() is not None:
                raise Failed("vgpu-monitor does not answer: " + open(os.path.join(ARGS.work, "monitor.log")).read())
            time.sleep(0.05)

    def both(name):
        """Used bytes and limit: as /metrics says them, and as vgpu top does."""
        entry = container(name)
        device = entry["devices"][0]
        key = (entry["container"], device["uuid"])
        series = metrics()
        scraped = (series.get(("hami_vgpu_memory_used_bytes", *key)), series.get(("hami_vgpu_memory_limit_bytes", *key)))
        return scraped, (device["used_bytes"], device["limit_bytes"])

    for name in ("train", "mesh"):
        # The two looks are moments apart, and what contexts cost is measured meanwhile.
        eventually(f"curl :{ARGS.port}/metrics says of {name} what vgpu top says", lambda name=name: both(name),
                   lambda pair: pair[0] == pair[1],
                   lambda pair: " of ".join("nothing" if value is None else gib(value) for value in pair[0]))

    print("\n" + vgpu("top", "--once"), flush=True)
    train.process.stdin.close()
    mesh.process.stdin.close()
    codes = (train.process.wait(timeout=30), mesh.process.wait(timeout=30))
    check("both end by themselves", f"exit codes {codes[0]} and {codes[1]}", codes == (0, 0))
    eventually("nothing is left behind", lambda: len(top()["containers"]), lambda count: count == 0)


def table():
    width = max(len(step) for step, _, _ in RESULTS)
    print(f"\n{'What was shown':<{width}}   Seen")
    print(f"{'-' * width}   {'-' * 24}")
    for step, seen, right in RESULTS:
        print(f"{step:<{width}}   {seen}{'' if right else '   <- WRONG'}")


def main():
    try:
        story()
    except (Failed, subprocess.TimeoutExpired, OSError) as problem:
        table()
        print(f"\nThe demo failed: {problem}", file=sys.stderr)
        return 1
    finally:
        for process in LIVING:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
    table()
    print(f"\nAll {len(RESULTS)} steps as they must be.")
    return 0


sys.exit(main())
