#!/usr/bin/env python3
"""A CUDA program of a tenant, out of cuda-python: does what its arguments say, one after the other, prints one line
for each, and knows nothing of limits.

    gpu.py WORD...

    count          how many GPUs there are
    uuids          which ones
    on=N           goes on with GPU N (it begins with GPU 0)
    total          bytes of memory that the GPU has
    free           bytes of it that are free
    take=MIB       allocates so much: "took", or "refused" and the driver's word for why
    drop           frees what it took last
    mig            UUIDs of the MIG instances that NVML shows
    nvml           total and used bytes of every GPU, as NVML says them
    busy=SECONDS   keeps the GPU busy so long; prints how many kernels ran
    wait=SECONDS   does nothing so long
    hold           waits to be killed
"""
import sys
import time

from cuda.bindings import driver as cu

MIB = 1 << 20
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry step__1ms() { ret; }\n\0"


def ask(answer):
    code, *values = answer
    if code != cu.CUresult.CUDA_SUCCESS:
        raise MemoryError(code.name)
    return values[0] if len(values) == 1 else values


def go_on(index):
    ask(cu.cuCtxSetCurrent(ask(cu.cuDevicePrimaryCtxRetain(ask(cu.cuDeviceGet(index))))))


def uuid(index):
    digits = bytes(ask(cu.cuDeviceGetUuid(ask(cu.cuDeviceGet(index)))).bytes).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def busy(seconds):
    module = ask(cu.cuModuleLoadData(PTX))
    kernel = ask(cu.cuModuleGetFunction(module, b"step__1ms"))
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        ask(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        ask(cu.cuCtxSynchronize())
        count += 1
    return count


def mig():
    import pynvml

    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        for part in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                found.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part)))
            except pynvml.NVMLError_NotFound:
                pass
    return " ".join(found)


def nvml():
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return " ".join(f"{memory.total}/{memory.used}" for memory in map(pynvml.nvmlDeviceGetMemoryInfo, handles))


def main():
    pieces = []
    ask(cu.cuInit(0))
    if any(word not in ("count", "uuids", "mig", "nvml", "hold") for word in sys.argv[1:]):
        go_on(0)
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        try:
            if name == "count":
                said = ask(cu.cuDeviceGetCount())
            elif name == "uuids":
                said = " ".join(uuid(index) for index in range(ask(cu.cuDeviceGetCount())))
            elif name == "on":
                said = go_on(int(value)) or value
            elif name == "total":
                said = ask(cu.cuMemGetInfo())[1]
            elif name == "free":
                said = ask(cu.cuMemGetInfo())[0]
            elif name == "take":
                pieces.append(ask(cu.cuMemAlloc(int(value) * MIB)))
                said = "took"
            elif name == "drop":
                ask(cu.cuMemFree(pieces.pop()))
                said = "freed"
            elif name == "mig":
                said = mig()
            elif name == "nvml":
                said = nvml()
            elif name == "busy":
                said = busy(float(value))
            elif name == "wait":
                said = time.sleep(float(value)) or "waited"
            elif name == "hold":
                print("hold", flush=True)
                while True:
                    time.sleep(3600)
            else:
                sys.exit(f"gpu.py: unknown word {word}")
        except MemoryError as refused:
            said = f"refused {refused}"
        print(word, said, flush=True)


main()
