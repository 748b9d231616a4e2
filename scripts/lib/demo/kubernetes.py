"""The demo on a real node, inside the namespaces of a cluster that has the product: three pods share one simulated GPU,
and kubectl, the agent's /metrics and Prometheus are asked about them. Their answers are printed and checked.

    kubernetes.py FOLDER        files of the run go below FOLDER
"""
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request

MIB = 1 << 20
# Name, MiB, percent, MiB that it takes, MiB that are refused after that.
PODS = [("training", 8000, 50, 6000, 3000), ("inference", 4000, 30, 2500, 3000), ("notebook", 2000, 20, 1000, 2000)]
NAMESPACE = "vgpu-system"
# The exporter and the device plugin: the agent's two processes.
PORTS = (31993, 31992)
TARGETS = len(PORTS)
failures = []


def kubectl(*words, text=None):
    done = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def read(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def until(what, ask, seconds=120):
    end = time.monotonic() + seconds
    while True:
        try:
            found, trouble = ask(), ""
        except (RuntimeError, OSError, ValueError) as error:
            found, trouble = None, f" ({error})"[:400]
        if found:
            return found
        if time.monotonic() > end:
            sys.exit(f"waited {seconds} s in vain: {what}{trouble}\n{kubectl('get', 'pods', '-A')}")
        time.sleep(0.2)


def show(title, text):
    print(f"\n--- {title}")
    print("\n".join("  " + line for line in text.rstrip().splitlines()), flush=True)


def check(what, found, wanted):
    print(f"  {'ok   ' if found == wanted else 'WRONG'} {what}: {found}" + ("" if found == wanted else f", not {wanted}"), flush=True)
    if found != wanted:
        failures.append(what)


def settles(what, ask, wanted, explain, seconds=60):
    """Checks what Prometheus knows once it has scraped: asks until it is as wanted, and at the deadline says why not."""
    end = time.monotonic() + seconds
    found = None
    while found != wanted and time.monotonic() < end:
        try:
            found = ask()
        except (OSError, ValueError) as error:
            found = str(error)
        if found != wanted:
            time.sleep(0.2)
    check(what, found, wanted)
    if found != wanted:
        try:
            lines = explain()
        except (OSError, ValueError) as error:
            lines = [f"Prometheus does not answer: {error}"]
        print("\n".join(f"        {line}" for line in lines), flush=True)


def manifest(name, memory, cores, take, past):
    return json.dumps({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "localhost/cuda-python:1", "imagePullPolicy": "Never",
            "args": ["uuids", "total", f"take={take}", f"take={past}", "hold"],
            "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}},
        }]},
    })


def series(text, name):
    """{pod: value} of a series in Prometheus' text form."""
    found = {}
    for line in text.splitlines():
        if line.startswith(name + "{") and 'pod="' in line:
            found[line.split('pod="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    return found


def prometheus(folder, address):
    """Starts one that scrapes the agent; Debian's knows no Kubernetes, so targets come from a file."""
    targets = os.path.join(folder, "targets.json")
    with open(targets, "w", encoding="utf-8") as file:
        json.dump([{"targets": [f"{address}:{port}" for port in PORTS]}], file)
    config = os.path.join(folder, "prometheus.yml")
    with open(config, "w", encoding="utf-8") as file:
        file.write("global: {scrape_interval: 1s}\nscrape_configs:\n"
                   "- job_name: vgpu-monitor\n  honor_labels: true\n"
                   f"  file_sd_configs: [{{files: ['{targets}']}}]\n")
    with open(os.path.join(folder, "prometheus.log"), "w", encoding="utf-8") as log:
        return subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:9090"],
            stdout=log, stderr=log)


def query(expression):
    answer = json.loads(read("http://127.0.0.1:9090/api/v1/query?query=" + urllib.parse.quote(expression)))
    return {one["metric"].get("pod", ""): float(one["value"][1]) for one in answer["data"]["result"]}


def unscraped():
    """Each target whose last scrape did not succeed, and why. Prometheus spreads the first scrapes of its
    targets over the interval, so the series of one say nothing about the others."""
    found = json.loads(read("http://127.0.0.1:9090/api/v1/targets?state=active"))["data"]["activeTargets"]
    return [f"{one['scrapeUrl']}: {one['lastError'] or 'not scraped yet'}" for one in found if one["health"] != "up"]


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    print("waiting for the product's parts", flush=True)
    kubectl("-n", NAMESPACE, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
    until("the kubelet has the agent's slots",
          lambda: int(kubectl("get", "node", "one", "-o", r"jsonpath={.status.allocatable.nvidia\.com/gpu}") or 0))
    show("kubectl -n vgpu-system get pods", kubectl("-n", NAMESPACE, "get", "pods"))

    for pod in PODS:
        until(f"the webhook takes {pod[0]}", lambda pod=pod: kubectl("apply", "-f", "-", text=manifest(*pod)))
    logs = {pod[0]: until(f"{pod[0]} has done its work", lambda pod=pod: (lambda text: text if "hold" in text else "")(kubectl("logs", pod[0])))
            for pod in PODS}
    show("kubectl get pods: three of them on the one GPU of this node", kubectl(
        "get", "pods", "-o", "custom-columns=NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,"
        r"UUID-VENDOR-MIB-PERCENT:.metadata.annotations.hami\.io/vgpu-devices-allocated"))
    for name, text in logs.items():
        show(f"kubectl logs {name}: what an unmodified cuda-python program sees", text)
    gpus = set()
    for name, memory, _, take, past in PODS:
        said = dict(line.split(" ", 1) for line in logs[name].splitlines() if " " in line)
        gpus.add(said["uuids"])
        check(f"{name} sees its share", int(said["total"]), memory * MIB)
        check(f"{name} takes {take} MiB", said[f"take={take}"], "took")
        check(f"{name} asks for {past} MiB more", said[f"take={past}"], "refused CUDA_ERROR_OUT_OF_MEMORY")
    check("GPUs in use", len(gpus), 1)

    address = kubectl("-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[0].status.podIP}")
    names = ("hami_vgpu_memory_limit_bytes", "hami_vgpu_memory_used_bytes")
    text = until("the agent shows all three",
                 lambda: (lambda text: text if len(series(text, names[1])) == len(PODS) else "")(read(f"http://{address}:31993/metrics")))
    show(f"curl http://{address}:31993/metrics | grep hami_vgpu_memory",
         "\n".join(line for line in text.splitlines() if line.startswith(names)))
    for name, memory, _, take, _ in PODS:
        check(f"limit of {name}", series(text, names[0]).get(name), memory * MIB * 1.0)
        check(f"{name} uses what it took, or more", series(text, names[1]).get(name, 0) >= take * MIB, True)

    server = prometheus(folder, address)
    try:
        up = 'sum(up{job="vgpu-monitor"})'
        settles("agent processes that Prometheus reaches", lambda: sum(query(up).values()), float(TARGETS), unscraped)
        settles("limits in Prometheus", lambda: query(names[0]), {pod[0]: pod[1] * MIB * 1.0 for pod in PODS}, unscraped)
        for expression in (names[0], "hami_vgpu_memory_used_bytes / hami_vgpu_memory_limit_bytes", "sum by (device_uuid) (hami_vgpu_memory_limit_bytes)"):
            show(f"Prometheus: {expression}", "\n".join(f"{pod or 'the GPU':10} {value:.2f}" for pod, value in sorted(query(expression).items())))
    finally:
        server.kill()
        server.wait()
    if failures:
        sys.exit(f"{len(failures)} checks failed: {'; '.join(failures)}")


main()
