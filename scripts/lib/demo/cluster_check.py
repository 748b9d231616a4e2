"""Whether a cluster keeps its promises: no GPU over what it has, and every bound pod knows its devices.

Reads nodes and pods as the API has them, and nothing of the scheduler's own, so that it cannot agree with a mistake.

    python3 cluster_check.py --url http://127.0.0.1:8080     prints each violation; ends with 1 when there is one
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/client/python"))

from vgpu_client import Client, Device, Object, devices, node_of  # noqa: E402

REGISTER = "hami.io/node-nvidia-register"


@dataclass
class Gpu:
    """A GPU as its node registered it, and what pods hold of it."""

    node: str
    uuid: str
    slots: int
    memory_mib: int
    cores: int
    model: str
    used: list[Device] = field(default_factory=list)

    @property
    def used_mib(self) -> int:
        return sum(device.memory_mib for device in self.used)

    @property
    def used_cores(self) -> int:
        return sum(device.cores for device in self.used)

    @property
    def free_mib(self) -> int:
        return self.memory_mib - self.used_mib


def gpus_of(nodes: list[Object]) -> dict[tuple[str, str], Gpu]:
    """Every GPU by node and UUID, from the register annotations (the form with commas and colons)."""
    gpus = {}
    for node in nodes:
        name = node["metadata"]["name"]
        for text in node["metadata"].get("annotations", {}).get(REGISTER, "").split(":"):
            if text:
                uuid, slots, memory, cores, model = text.split(",")[:5]
                gpus[name, uuid] = Gpu(name, uuid, int(slots), int(memory), int(cores), model)
    return gpus


def asked(pod: Object) -> list[tuple[int, int, int]]:
    """GPUs, MiB and cores that each container asks for, init containers first; 0 where it does not say."""
    spec = pod["spec"]
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    limits = [(container.get("resources") or {}).get("limits") or {} for container in containers]
    names = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
    return [tuple(int(each.get(name, 0)) for name in names) for each in limits]  # type: ignore[misc]


def violations(nodes: list[Object], pods: list[Object]) -> tuple[list[str], dict[tuple[str, str], Gpu]]:
    """The violations, in words, and the GPUs with the shares that pods hold. Finished init containers hold nothing;
    the demo's pods have none that run beside their app's GPUs."""
    gpus = gpus_of(nodes)
    wrong = []
    for pod in pods:
        name = f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        node = node_of(pod)
        if node is None:
            continue
        annotations = pod["metadata"].get("annotations") or {}
        if annotations.get("hami.io/vgpu-node") != node:
            wrong.append(f"{name} runs on {node} and its devices lie on {annotations.get('hami.io/vgpu-node')}")
        if not annotations.get("hami.io/vgpu-time", "").isdigit():
            wrong.append(f"{name} does not say when its devices were chosen")
        held, wanted = devices(pod), asked(pod)
        if len(held) != len(wanted):
            wrong.append(f"{name} has {len(wanted)} containers and devices for {len(held)}")
            continue
        inits = len(pod["spec"].get("initContainers") or [])
        peak: dict[str, list[Device]] = defaultdict(list)
        for index, (have, (count, memory, cores)) in enumerate(zip(held, wanted)):
            if len(have) != count or len({device.uuid for device in have}) != count:
                wrong.append(f"{name} asks for {count} GPUs in container {index} and holds {have}")
            for device in have:
                if device.memory_mib < memory or device.cores < cores:
                    wrong.append(f"{name} asks for {memory} MiB and {cores} cores, and holds {device}")
                if (node, device.uuid) not in gpus:
                    wrong.append(f"{name} holds {device.uuid}, which {node} does not have")
                elif index >= inits:
                    gpus[node, device.uuid].used.append(device)
                else:
                    peak[device.uuid].append(device)
        for uuid, before in peak.items():
            gpu = gpus[node, uuid]
            if max(device.memory_mib for device in before) > gpu.memory_mib:
                wrong.append(f"{name} takes more of {uuid} before it starts than there is")
    for gpu in gpus.values():
        for what, used, has in (
            ("slots", len(gpu.used), gpu.slots),
            ("MiB", gpu.used_mib, gpu.memory_mib),
            ("cores", gpu.used_cores, gpu.cores),
        ):
            if used > has:
                wrong.append(f"GPU {gpu.uuid} of {gpu.node} has {has} {what}, and {used} are promised")
    return wrong, gpus


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", required=True)
    client = Client(arguments.parse_args().url)
    wrong, gpus = violations(client.nodes(), client.pods())
    for line in wrong:
        print(line)
    print(f"{len(gpus)} GPUs looked at, {len(wrong)} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
