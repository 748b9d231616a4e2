#!/usr/bin/env python3
"""Places one pod through the scheduler's HTTP API and reads back what it got; then asks why another fits nowhere.

    vgpu-scheduler --embedded examples/client/state.json &
    python3 examples/client/python/example.py --url http://127.0.0.1:8080
"""

import argparse
import sys

from vgpu_client import ApiError, Client, Denied, Object, devices, node_of


def pod(name: str, **limits: object) -> Object:
    """A pod of one container with these limits."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "nvidia/cuda:12.9.0-base-ubuntu22.04",
                    "resources": {"limits": {f"nvidia.com/{key}": str(value) for key, value in limits.items()}},
                }
            ]
        },
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="http://127.0.0.1:8080", help="the scheduler (default %(default)s)")
    arguments.add_argument("--api", help="the Kubernetes API server, where it is not the scheduler's own")
    arguments.add_argument("--token", help="a bearer token, where one is wanted")
    given = arguments.parse_args()
    client = Client(given.url, given.api, given.token)

    if not client.healthy():
        print(f"no scheduler at {given.url}", file=sys.stderr)
        return 1
    print("healthy")
    nodes = [node["metadata"]["name"] for node in client.nodes()]

    # The webhook completes the pod, or says what is wrong with it.
    admitted = client.admit(pod("example", gpu=1, gpumem=3000, gpucores=30))
    print("admitted for", admitted["spec"]["schedulerName"])
    try:
        client.admit(pod("wrong", gpu=1, **{"gpumem-percentage": 150}))
    except Denied as reason:
        print("denied:", reason)

    created = client.create(admitted)
    chosen = client.filter(created, nodes).nodes[0]
    client.bind(created, chosen)
    placed = client.pod("default", "example")
    print("bound to", node_of(placed))
    for container in devices(placed):
        for device in container:
            print(f"holds {device.memory_mib} MiB and {device.cores} cores of {device.uuid}")

    # A pod that fits nowhere gets a reason for each node, and the smallest change that would help.
    large = client.create(client.admit(pod("large", gpu=1, gpumem=100000)))
    for node, why in sorted(client.filter(large, nodes).reasons.items()):
        print(f"{node}: {why}")
    for advice in client.explain(large)["advice"]:
        print(f"would fit on {advice.get('node') or 'some node'} if {advice['text']}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ApiError, Denied) as error:
        sys.exit(f"failed: {error}")
