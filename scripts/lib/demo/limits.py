"""Small programs that each try one way past a memory limit, on the contrary mode of the simulated driver.

Starts `vgpu sim --contrary -- vgpu run --gpumem 4Gi -- PROGRAM` for each of them (all in limits.c), reads from the
simulated NVML what the GPU holds while it runs, and from `vgpu oom` what was refused. Ends with a table; fails if a
program held more than its limit, was never refused, or left no record of the processes that held the memory.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time

MIB = 1 << 20
LIMIT = 4 << 30
HERE = os.path.dirname(os.path.abspath(__file__))

# Line, program, what it tries; and what its board needs.
TRIES = [
    (1, "graphs", "graphs that keep their memory; an upload of 20 GiB", {}),
    (2, "modules", "modules that declare 256 MiB each", {}),
    (3, "contexts", "contexts where NVML is absent", {"inside": ["VGPU_SIM_NVML=absent"]}),
    (4, "forged", "zeroes written over the container's own region", {"beyond": 2 * 256 * MIB}),
    (5, "tables", "256 pools, and 65,600 references to one handle", {}),
    (6, "dying_exporter", "shared memory whose exporter dies; a descriptor back", {}),
    (7, "behind_a_stream", "memory freed behind a stream that is blocked", {}),
    (8, "jumps", "jumps out of calls that have given memory", {}),
    (9, "green_contexts", "green contexts destroyed; larger stacks", {}),
    (10, "visible_later", "CUDA_VISIBLE_DEVICES set after cuInit; imports", {}),
    (11, "thirteen", "locations and managed pools of CUDA 13", {"driver": "13.1"}),
    (12, "exported_in_a_context", "exports in contexts that are destroyed", {}),
    (13, "unasked", "runtimes that make contexts in a full container", {}),
    (14, "first_contexts", "24 processes that begin together", {}),
    (15, "killed", "memory of killed processes, released 500 ms later", {"env": {"VGPU_SIM_RELEASE_DELAY_MS": "500"}}),
    (16, "modules_after_memory", "modules after the first memory", {}),
    (17, "by_version", "contexts and memory by cuGetProcAddress of 13.0", {"driver": "13.0"}),
    (18, "plain", "memory beside a region file of another make", {"other_region": True}),
]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Watch(threading.Thread):
    """Looks at GPU 0 again and again and remembers the most that was used."""

    def __init__(self):
        super().__init__(daemon=True)
        os.environ["VGPU_SIM_NVML"] = "whole"
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)):
            raise RuntimeError("the simulated NVML does not answer")
        self.most = self.base = self.used()
        self.ended = False

    def used(self):
        memory = Memory()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)):
            raise RuntimeError("the simulated NVML does not tell the memory")
        return memory.used

    def run(self):
        while not self.ended:
            self.most = max(self.most, self.used())
            time.sleep(0.0005)


def one(args):
    """Inside `vgpu sim`: one program, and what was seen of it, as JSON."""
    _, program, _, needs = next(entry for entry in TRIES if entry[1] == args.one)
    environment = {**os.environ, "VGPU_BOARD": os.path.join(args.work, "containers-" + program)}
    command = ["env", *needs.get("inside", []), args.program, program]
    log = os.path.join(args.work, program + ".log")
    if needs.get("other_region"):
        region = os.path.join(args.work, "vgpu.cache")
        with open(region, "wb") as file:
            file.write(b"\x01\x2f\x0a\x00HAMi" + bytes(1 << 20))
        environment.update(LD_PRELOAD=os.path.join(args.bin, "libvgpu.so"), CUDA_DEVICE_MEMORY_LIMIT="4g",
                           CUDA_DEVICE_MEMORY_SHARED_CACHE=region, VGPU_LOG=log)
    else:
        command = [os.path.join(args.bin, "vgpu"), "run", "--name", "try", "--gpu", "0", "--gpumem", "4Gi", "--", *command]
    watch = Watch()
    watch.start()
    with open(os.path.join(args.work, program + ".err"), "w") as errors:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=errors, text=True)
    killer = threading.Timer(40, process.kill)
    killer.start()
    said = process.stdout.readline().strip()
    finally_used = watch.used()
    records = []
    if needs.get("other_region"):
        with open(log, errors="replace") as file:
            records = [line for line in file if " asked, " in line]
    elif process.poll() is None:
        told = subprocess.run([os.path.join(args.bin, "vgpu"), "oom", "try", "--json"], env=environment,
                              capture_output=True, text=True, check=False)
        if told.returncode == 0:
            records = [record for record in json.loads(told.stdout)["records"] if record["holders"]]
    process.stdin.close()
    process.wait()
    killer.cancel()
    watch.ended = True
    watch.join()
    print(json.dumps({"said": said, "most": max(watch.most, finally_used) - watch.base, "records": len(records)}))
    return 0


def every(args):
    rows, wrong = [], 0
    for line, program, what, needs in TRIES:
        if args.only and program not in args.only:
            continue
        flags = ["--driver", needs["driver"]] if "driver" in needs else []
        done = subprocess.run(
            [os.path.join(args.bin, "vgpu"), "sim", "--contrary", "--gpus", "2", "--memory", "48Gi", *flags, "--",
             sys.executable, "-B", os.path.abspath(__file__), "--bin", args.bin, "--work", args.work,
             "--program", args.program, "--one", program],
            env={**os.environ, **needs.get("env", {})}, capture_output=True, text=True, check=False, timeout=120)
        try:
            seen = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            seen = {"said": "no answer: " + done.stderr.strip()[-200:], "most": 0, "records": 0}
        allowed = LIMIT + needs.get("beyond", 0)
        said = seen["said"].split()
        tried = len(said) == 4 and said[0] == "took"
        troubles = []
        if not tried:
            troubles.append(seen["said"] or "it ended early")
        if seen["most"] > allowed:
            troubles.append("above its limit")
        if tried and said[1] == "0":
            troubles.append("was given nothing")
        if tried and said[3] == "0":
            troubles.append("never refused")
        if tried and not seen["records"]:
            troubles.append("no record")
        wrong += bool(troubles)
        rows.append((line, what, seen["most"], seen["records"], ", ".join(troubles)))
        print(f"  {'WRONG' if troubles else 'ok':<5}  {line:>2} {what}", flush=True)
    width = max(len(row[1]) for row in rows)
    print(f"\n{'':>2}  {'What it tries':<{width}}  {'Held at most':>12}  {'Limit':>8}  Record")
    print(f"{'--':>2}  {'-' * width}  {'-' * 12}  {'-' * 8}  ------")
    for line, what, most, records, trouble in rows:
        print(f"{line:>2}  {what:<{width}}  {most // MIB:>8} MiB  {LIMIT // MIB} MiB  {'yes' if records else 'no':<6}"
              f"{'   <- ' + trouble if trouble else ''}")
    if wrong:
        print(f"\n{wrong} of {len(rows)} did not stay within the limit.", file=sys.stderr)
        return 1
    print(f"\nAll {len(rows)} were refused at the limit, with a record.")
    return 0


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--bin", "--work", "--program"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--one")
    parser.add_argument("only", nargs="*")
    args = parser.parse_args()
    return one(args) if args.one else every(args)


sys.exit(main())
