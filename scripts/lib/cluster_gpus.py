"""Makes the simulated GPUs of a cluster's node: the board, a device node for each GPU, and the CDI specification that
NVIDIA's toolkit would have written (`nvidia-ctk cdi generate`). Run inside the cluster's namespaces, with VGPU_SIM_*
set and the simulated libraries on LD_LIBRARY_PATH.

    cluster_gpus.py DRIVER_FOLDER SPECIFICATION [DEVICE_FOLDER]

Run again after the board has changed (MIG), it writes the specification anew.
"""
import ctypes
import json
import os
import stat
import sys

# Opens and closes as any device does; always allowed to containers, as nothing can be done with it.
NULL = os.makedev(1, 3)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# MIG instances that a GPU can have at a time.
INSTANCES = 7


def gpus():
    """UUIDs of all GPUs, in their order."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name, *arguments):
        code = getattr(nvml, name)(*arguments)
        if code:
            sys.exit(f"cluster_gpus: {name} answered {code} (board {os.environ.get('VGPU_SIM_BOARD')})")

    call("nvmlInit_v2")
    count = ctypes.c_uint()
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    uuids = []
    for index in range(count.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        call("nvmlDeviceGetUUID", handle, text, len(text))
        uuids.append(text.value.decode())
    return uuids


def device_node(folder, name):
    path = f"{folder}/{name}"
    if not os.path.exists(path):
        os.mknod(path, stat.S_IFCHR | 0o666, NULL)
        os.chmod(path, 0o666)


def capabilities(gpu, index):
    """The two device nodes that open a MIG instance: see crates/cuda-sim/src/nodes.rs."""
    first = 3 + 2 * (gpu * INSTANCES + index)
    return [f"nvidia-caps/nvidia-cap{number}" for number in (first, first + 1)]


def instance(uuid, index):
    """The UUID of a MIG instance: see crates/cuda-sim/src/mig.rs."""
    return f"MIG-{uuid.removeprefix('GPU-')[:-4]}f0{index:02x}"


def specification(uuids, driver):
    board = os.environ["VGPU_SIM_BOARD"]
    nodes = [[{"path": f"/dev/nvidia{index}"}] for index in range(len(uuids))]
    devices = [{"name": str(index), "containerEdits": {"deviceNodes": nodes[index]}} for index in range(len(uuids))]
    devices += [{"name": uuid, "containerEdits": {"deviceNodes": nodes[index]}} for index, uuid in enumerate(uuids)]
    devices += [{"name": "all", "containerEdits": {"deviceNodes": sum(nodes, [])}}]
    # Every instance that there may be, as NVIDIA's toolkit names those that there are.
    devices += [
        {"name": instance(uuid, part), "containerEdits": {"deviceNodes": nodes[index] + [{"path": f"/dev/{node}"} for node in capabilities(index, part)]}}
        for index, uuid in enumerate(uuids) for part in range(INSTANCES)
    ]
    library = ["ro", "nosuid", "nodev", "bind"]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", f"VGPU_SIM_BOARD={board}", f"VGPU_SIM_PROC={os.environ['VGPU_SIM_PROC']}", "VGPU_SIM_DEVICES_DIR=/dev"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
            "mounts": [
                {"hostPath": f"{driver}/{name}", "containerPath": f"{LIBRARIES}/{name}", "options": library}
                for name in ("libcuda.so.1", "libnvidia-ml.so.1")
            ]
            # The simulated GPU itself: every process on it maps these files. The node's /proc lies in it too.
            + [{"hostPath": os.path.dirname(board), "containerPath": os.path.dirname(board), "options": ["rw", "nosuid", "nodev", "rbind"]}],
        },
    }


def main():
    driver, target = sys.argv[1:3]
    folder = sys.argv[3] if len(sys.argv) > 3 else "/dev"
    for name in ("nvidiactl", "nvidia-uvm"):
        device_node(folder, name)
    # Before the library looks: it shows the GPUs that have a node.
    os.makedirs(f"{folder}/nvidia-caps", exist_ok=True)
    for index in range(int(os.environ["VGPU_SIM_GPUS"])):
        device_node(folder, f"nvidia{index}")
        for part in range(INSTANCES):
            for node in capabilities(index, part):
                device_node(folder, node)
    # Written aside and renamed: a runtime may be reading.
    with open(target + ".new", "w", encoding="utf-8") as file:
        json.dump(specification(gpus(), driver), file, indent=1)
    os.replace(target + ".new", target)


main()
