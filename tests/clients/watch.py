"""A program that looks at the GPU through NVML, with one client library; prints what it sees as JSON.

    watch.py CLIENT     prints {"total": bytes, "used": bytes, "pids": [...], "gpus": count}
"""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time


def nvidia_ml_py():
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (memory.total, memory.used) == (second.total, second.used), (memory, second)
    assert memory.free == memory.total - memory.used, memory
    pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return {"total": memory.total, "used": memory.used, "pids": pids, "gpus": pynvml.nvmlDeviceGetCount()}


def nvitop():
    from nvitop import Device

    devices = Device.all()
    device = devices[0]
    return {
        "total": device.memory_total(),
        "used": device.memory_used(),
        "pids": sorted(device.processes()),
        "gpus": len(devices),
    }


def gpustat():
    told = json.loads(subprocess.run([sys.executable, "-m", "gpustat", "--json"], capture_output=True, text=True, check=True).stdout)
    gpu = told["gpus"][0]
    return {
        "total": gpu["memory.total"] << 20,
        "used": gpu["memory.used"] << 20,
        "pids": sorted(process["pid"] for process in gpu["processes"]),
        "gpus": len(told["gpus"]),
    }


def nvtop():
    """nvtop draws on a terminal: it gets one, and what it draws is read."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", COLUMNS="160", LINES="48", XDG_CONFIG_HOME="/nonexistent")
        os.execlp("nvtop", "nvtop", "--no-color", "--no-plot", "--delay", "2")
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
    drawn = b""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                drawn += os.read(terminal, 65536)
            except OSError:
                break
    os.write(terminal, b"q")
    os.waitpid(child, 0)
    # Colours may change within a number; other sequences stand between words.
    drawn = re.sub(rb"\x1b\[[0-9;]*m|\x1b\([0B]", b"", drawn)
    text = re.sub(rb"\x1b[\[(][0-9;?]*[A-Za-z]", b" ", drawn).decode(errors="replace")
    memory = re.findall(r"([0-9.]+)Gi/([0-9.]+)Gi", text)
    if not memory:
        raise SystemExit(f"nvtop drew no memory: {text[-2000:]}")
    used, total = memory[-1]
    return {
        "total": round(float(total) * (1 << 30)),
        "used": round(float(used) * (1 << 30)),
        "pids": sorted({int(pid) for pid in re.findall(r"\b([0-9]{2,7}) +root\b", text)}),
        "gpus": len(set(re.findall(r"Device ([0-9]+)", text))),
    }


CLIENTS = {"nvidia-ml-py": nvidia_ml_py, "nvitop": nvitop, "gpustat": gpustat, "nvtop": nvtop}

print(json.dumps(CLIENTS[sys.argv[1]]()))
