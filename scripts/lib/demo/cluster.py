"""The cluster demo's story: a cluster of simulated GPUs, many pods through webhook, filter and bind, and what came of it.

Everything goes over HTTP by the client example (examples/client/python). The same seed makes the same pods, and the
scheduler leaves nothing to chance, so two runs print the same but for the times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../../../examples/client/python"))

from cluster_check import Gpu, asked, violations  # noqa: E402
from vgpu_client import ApiError, Client, Denied, Object  # noqa: E402

GIB = 1024
#: Of 20 nodes, how many have which GPU, and its memory in MiB.
MODELS = (("NVIDIA-H100 80GB HBM3", 6, 81559), ("NVIDIA-A100-SXM4-40GB", 8, 40960), ("NVIDIA-L4", 6, 23034))
#: The requests: words, weight, gpu, gpumem in MiB or percent, cores, further annotations.
KINDS: tuple[tuple[str, int, int, Any, Any, dict[str, str]], ...] = (
    ("inference, small", 34, 1, (2000, 3000, 4000, 6000), (10, 20, 25), {}),
    ("inference, large", 20, 1, (10000, 16000, 20000), (30, 50), {}),
    ("notebook, a quarter of a GPU", 14, 1, "25%", (20,), {}),
    ("fine-tuning on H100 only", 9, 1, (40000, 60000), (50, 60), {"nvidia.com/use-gputype": "H100"}),
    ("training on one whole GPU", 10, 1, None, None, {}),
    ("training on four whole GPUs", 7, 4, None, None, {}),
    ("training on eight whole GPUs", 5, 8, None, None, {}),
    ("spread over GPUs that no pod uses", 2, 2, (8000,), (25,), {"hami.io/gpu-scheduler-policy": "mutex"}),
    ("asks for 150 % of a GPU", 1, 1, "150%", None, {}),
    ("privileged", 1, 1, (2000,), (10,), {}),
)


def cluster(nodes: int, gpus: int) -> Object:
    """A state for `vgpu-scheduler --embedded`."""
    made = []
    for number in range(nodes):
        place = number % 20
        for model, share, memory in MODELS:
            if place < share:
                break
            place -= share
        name = f"node-{number:03}"
        register = "".join(
            f"GPU-{number:08x}-{gpu:04x}-0000-0000-000000000000,10,{memory},100,{model},{gpu * 2 // gpus},true:"
            for gpu in range(gpus)
        )
        amount = {"nvidia.com/gpu": str(gpus * 10)}
        made.append(
            {
                "metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register}},
                "status": {"capacity": amount, "allocatable": amount},
            }
        )
    return {"nodes": made, "pods": [], "resourceQuotas": []}


def workload(count: int, seed: int) -> list[tuple[str, Object]]:
    """Pods, each with the words that say what it is."""
    chance = random.Random(seed)
    pods = []
    for number in range(count):
        words, _, gpu, memory, cores, annotations = chance.choices(KINDS, [kind[1] for kind in KINDS])[0]
        limits = {"nvidia.com/gpu": str(gpu)}
        if isinstance(memory, str):
            limits["nvidia.com/gpumem-percentage"] = memory.rstrip("%")
        elif memory:
            limits["nvidia.com/gpumem"] = str(chance.choice(memory))
        if cores:
            limits["nvidia.com/gpucores"] = str(chance.choice(cores))
        container: Object = {"name": "main", "image": "example/work", "resources": {"limits": limits}}
        if words == "privileged":
            container["securityContext"] = {"privileged": True}
        containers = [container]
        # Every tenth has a helper without a GPU before its main container.
        if number % 10 == 0:
            containers.insert(0, {"name": "helper", "image": "example/helper"})
        pods.append(
            (
                words,
                {
                    "metadata": {"name": f"pod-{number:04}", "namespace": "default", "annotations": dict(annotations)},
                    "spec": {"containers": containers},
                },
            )
        )
    return pods


class Outcome:
    """The fates of the pods."""

    def __init__(self) -> None:
        self.placed: list[tuple[str, Object]] = []
        self.denied: Counter[str] = Counter()
        self.unplaced: list[tuple[str, Object, dict[str, str]]] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)


def drive(client: Client, pods: list[tuple[str, Object]]) -> Outcome:
    """Each pod through webhook, filter and bind, one after the other."""
    outcome = Outcome()
    nodes = [node["metadata"]["name"] for node in client.nodes()]

    def timed(what, call, *values):
        begun = time.monotonic()
        try:
            return call(*values)
        finally:
            outcome.seconds[what].append(time.monotonic() - begun)

    for words, pod in pods:
        try:
            pod = timed("webhook", client.admit, pod)
        except Denied as reason:
            outcome.denied[f"{words}: {reason}"] += 1
            continue
        pod = client.create(pod)
        answer = timed("filter", client.filter, pod, nodes)
        if not answer.nodes:
            outcome.unplaced.append((words, pod, answer.reasons))
            continue
        timed("bind", client.bind, pod, answer.nodes[0])
        outcome.placed.append((words, pod))
    return outcome


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole else "    - "


def report_use(gpus: list[Gpu]) -> None:
    print(f"\nUtilisation\n  {'GPUs':32} {'memory':>8} {'cores':>8} {'untouched':>10} {'shared':>7} {'whole':>6}")
    by_model: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        by_model[gpu.model].append(gpu)
    for model, some in [*sorted(by_model.items()), ("all", gpus)]:
        memory = share(sum(gpu.used_mib for gpu in some), sum(gpu.memory_mib for gpu in some))
        cores = share(sum(gpu.used_cores for gpu in some), sum(gpu.cores for gpu in some))
        whole = sum(1 for gpu in some if gpu.used and gpu.free_mib == 0)
        untouched = sum(1 for gpu in some if not gpu.used)
        shared = len(some) - untouched - whole
        print(f"  {len(some):4} {model:27} {memory:>8} {cores:>8} {untouched:10} {shared:7} {whole:6}")


def report_fragments(gpus: list[Gpu], pods: list[tuple[str, Object]]) -> None:
    """How much of the free memory lies in pieces that the usual request cannot use."""
    requests = [memory for _, pod in pods for _, memory, _ in asked(pod) if memory]
    median = int(statistics.median(requests))
    free = [gpu for gpu in gpus if gpu.free_mib > 0]
    total = sum(gpu.free_mib for gpu in free)
    small = sum(gpu.free_mib for gpu in free if gpu.free_mib < median)
    no_cores = sum(gpu.free_mib for gpu in free if gpu.free_mib >= median and gpu.used_cores >= gpu.cores)
    partly = sum(gpu.free_mib for gpu in free if gpu.used)
    print("\nFragmentation")
    print(f"  free memory: {total / GIB:.0f} GiB on {len(free)} GPUs, the largest piece {max((gpu.free_mib for gpu in free), default=0) / GIB:.0f} GiB")
    print(f"  {share(small, total)} of it lies in pieces smaller than the median request ({median} MiB)")
    print(f"  {share(no_cores, total)} of it lies on GPUs that have no cores left")
    print(f"  {share(partly, total)} of it lies on GPUs in use, where no request for a whole GPU can go")


def words_of(reasons: dict[str, str]) -> str:
    """The reasons of all nodes in one line: what each GPU said, and of how many."""
    gpus: Counter[str] = Counter()
    for reason in reasons.values():
        for count, why in re.findall(r"(\d+)/\d+ (\w+)", reason):
            gpus[why] += int(count)
        if not re.search(r"\d+/\d+ \w+", reason):
            gpus[reason] += 1
    return ", ".join(f"{why} ({count})" for why, count in gpus.most_common())


def report_misfits(outcome: Outcome) -> None:
    print(f"\nRefused by the webhook: {sum(outcome.denied.values())}")
    for reason, count in sorted(outcome.denied.items()):
        print(f"  {count:4}  {reason}")
    print(f"\nDid not fit: {len(outcome.unplaced)}, and the reasons that GPUs gave (of how many GPUs, for the first such pod)")
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for words, _, reasons in outcome.unplaced:
        groups[words].append(reasons)
    for words, some in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"  {len(some):4}  {words}: {words_of(some[0])}")


def check_metrics(client: Client, gpus: list[Gpu]) -> list[str]:
    """Checks that the memory the scheduler reports as given is the sum of the pods' annotations."""
    said: dict[str, float] = {}
    for line in client.metrics().splitlines():
        found = re.match(r'hami_gpu_memory_allocated_bytes\{.*device_uuid="([^"]*)".*\} (\S+)', line)
        if found:
            said[found[1]] = float(found[2])
    wrong = []
    for gpu in gpus:
        if said.get(gpu.uuid) != gpu.used_mib * 1024 * 1024:
            wrong.append(f"/metrics says {said.get(gpu.uuid)} bytes of {gpu.uuid}, its pods hold {gpu.used_mib} MiB")
    return wrong


def start(scheduler: str, state: Object, work: str) -> tuple[subprocess.Popen, str]:
    """The scheduler on this state, on a port of its own, once it is ready."""
    path = os.path.join(work, "state.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(state, file)
    log = open(os.path.join(work, "scheduler.log"), "wb")
    # Whichever port is free: it says which.
    process = subprocess.Popen(
        [scheduler, "--embedded", path, "--http_bind=127.0.0.1:0", "--log=info", "--log-format=text"],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )
    for _ in range(600):
        if process.poll() is not None:
            break
        with open(log.name, encoding="utf-8", errors="replace") as file:
            said = re.search(r": serving address=(\S+)", file.read())
        if said and Client(f"http://{said[1]}").ready():
            return process, f"http://{said[1]}"
        time.sleep(0.05)
    process.kill()
    with open(log.name, encoding="utf-8", errors="replace") as file:
        raise SystemExit(f"{scheduler} does not start:\n{file.read()[-2000:]}")


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--scheduler", required=True, help="the vgpu-scheduler program")
    arguments.add_argument("--nodes", type=int, default=100)
    arguments.add_argument("--gpus", type=int, default=8, help="GPUs on each node")
    arguments.add_argument("--pods", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as work:
        process, url = start(given.scheduler, cluster(given.nodes, given.gpus), work)
        try:
            return story(Client(url), workload(given.pods, given.seed), given)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def story(client: Client, pods: list[tuple[str, Object]], given: argparse.Namespace) -> int:
    print(f"{given.nodes} nodes of {given.gpus} simulated GPUs at {client.url}, {len(pods)} pods", flush=True)
    begun = time.monotonic()
    outcome = drive(client, pods)
    took = time.monotonic() - begun
    nodes, bound = client.nodes(), client.pods()
    wrong, gpus = violations(nodes, bound)
    running = {pod["metadata"]["name"] for pod in bound if pod["spec"].get("nodeName")}
    missing = {pod["metadata"]["name"] for _, pod in outcome.placed} ^ running
    wrong += [f"pod {name} was bound on one side only" for name in sorted(missing)]
    wrong += check_metrics(client, list(gpus.values()))

    print(f"\nPlaced {len(outcome.placed)} of {len(pods)} pods in {took:.1f} s")
    for words, count in Counter(words for words, _ in outcome.placed).most_common():
        print(f"  {count:4}  {words}")
    medians = (f"{what} {1000 * statistics.median(seconds):.1f} ms" for what, seconds in outcome.seconds.items())
    print(f"  median of one request, as the client saw it, of an unoptimised build: {', '.join(medians)}")
    report_use(list(gpus.values()))
    report_fragments(list(gpus.values()), pods)
    report_misfits(outcome)
    explained = ""
    if outcome.unplaced:
        words, pod, _ = next((one for one in outcome.unplaced if "H100" in one[0]), outcome.unplaced[-1])
        explained = client.explain_text(pod)
        print(f"\nGET /explain of one of them ({words}):\n")
        print("\n".join(f"  {line}".rstrip() for line in explained.splitlines()))

    print(f"\nChecked: {len(gpus)} GPUs against {len(running)} bound pods, annotations, and /metrics: {len(wrong)} violations")
    for line in wrong[:20]:
        print(f"  WRONG  {line}")
    if not outcome.placed or (outcome.unplaced and not explained):
        wrong.append("nothing was placed, or nothing was explained")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ApiError as error:
        sys.exit(f"failed: {error}")
