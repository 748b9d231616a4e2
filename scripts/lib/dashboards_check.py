"""The inside of dashboards-check: real programs with work on them, a real Prometheus, and every query that the chart
brings. Each must return series.

Called with the folder of the binaries and a working folder, on simulated GPUs (`vgpu sim`). It starts containers that
use, wait, are refused and idle; the exporter and the device plugin; the scheduler on an embedded cluster with pods that are placed, wait and
are refused; the webhook against that cluster; and a Prometheus that scrapes them and evaluates the chart's rules. What
only a node with a kubelet shows is served from recorded-agent.txt.

Listens on loopback only, and ends what it started.
"""

import base64
import contextlib
import glob
import http.server
import json
import math
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

from prometheus_check import MIB, TENANT, say, start, start_prometheus, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
CHART = os.path.join(HERE, "..", "..", "charts", "vgpu")
sys.path.insert(0, os.path.join(HERE, "..", "..", "examples", "client", "python"))

from vgpu_client import ApiError, Client, Denied  # noqa: E402

# Launches kernels of 1 ms for as long as its input is open, with a copy, a graph and a host function now and then.
WORKS = """
import ctypes, select, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, module, function, pointer, graph, work = (
    ctypes.c_int(), *(ctypes.c_void_p() for _ in range(6)))
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
ptx = b".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry spin__1ms() { ret; }\\n"
cuda.cuModuleLoadData(ctypes.byref(module), ptx)
cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin__1ms")
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20))
cuda.cuGraphCreate(ctypes.byref(graph), 0)
cuda.cuGraphInstantiateWithFlags(ctypes.byref(work), graph, ctypes.c_ulonglong(0))
print("works", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for number in range(20):
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    cuda.cuMemsetD8Async(pointer, 0, ctypes.c_size_t(4096), None)
    cuda.cuGraphLaunch(work, None)
    cuda.cuCtxSynchronize()
"""

# Is refused memory ten times a second.
STORMS = """
import ctypes, select, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
print("storms", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 30))
"""


def main():
    binaries, work = sys.argv[1:]
    with contextlib.ExitStack() as ends:
        check(binaries, work, ends)


def check(binaries, work, ends):
    board = os.path.join(work, "board")
    os.mkdir(board, 0o755)
    containers(ends, binaries, board)
    agent = listens(ends, work, "agent", [
        f"{binaries}/vgpu-monitor", "--root", board, "--metrics-addr", "127.0.0.1:0", "--node-name", "check",
        "--attest=report"])
    # A collector that is away: what is dropped is counted, and nothing else suffers.
    away = ["--otlp-endpoint", "http://127.0.0.1:9"]
    scheduler = listens(ends, work, "scheduler", [
        f"{binaries}/vgpu-scheduler", "--embedded", state(work), "--http_bind", "127.0.0.1:0", "--log", "info",
        "--reservation-timeout", "1s", *away])
    client = Client(f"http://{scheduler}")
    wait_for("the scheduler to be ready", client.ready)
    reviews, figures = webhook(ends, binaries, work, scheduler)
    asks = Asks(client, reviews)
    asks.some()
    ends.callback(asks.stop)
    targets = [agent, scheduler, figures, plugin(ends, binaries, work), recorded(ends)]
    ask = start_prometheus(ends, work, targets, glob.glob(f"{CHART}/rules/*.yaml"))
    subprocess.run([f"{binaries}/vgpu", "set", "--board", board, "holds", "--gpumem", "256Mi"], check=True,
                   capture_output=True, timeout=60)

    faults = Faults(binaries)
    ends.callback(faults.stop)
    queries = list(panels()) + list(variables()) + list(rules(ask))
    left = dict(queries)
    last = {}

    def all_answer():
        for name, query in list(left.items()):
            last[name] = answer(ask, query)
            if last[name] is None:
                del left[name]
        return not left

    try:
        wait_for("every query to return series", all_answer, 45)
    except AssertionError:
        for name in left:
            print(f"      WRONG {name}: {last[name]}: {left[name]}", flush=True)
        raise
    kinds = {kind: sum(name.startswith(kind) for name, _ in queries) for kind in ("panel", "variable", "rule")}
    say(f"{kinds['panel']} queries of panels, {kinds['variable']} of variables and {kinds['rule']} of rules returned series")
    wait_for("no rule to fail", lambda: not sick(ask))
    try:
        wait_for("alerts to fire", lambda: alerts(ask) >= CAUSED)
    finally:
        say(f"alerts that fire or are about to: {', '.join(sorted(alerts(ask)))}")


def containers(ends, binaries, board):
    """One that works under a cap and a floor, one that works past its share of memory, one that holds, one that storms."""

    def begin(name, options, program, *arguments):
        command = [f"{binaries}/vgpu", "run", "--board", board, *options, "--name", name, "--"]
        command += [sys.executable, "-c", program, *map(str, arguments)]
        tenant = start(ends, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert tenant.stdout.readline(), f"{name} has ended"

    begin("works", ["--gpumem", "2Gi", "--gpucores", "30", "--floor", "20", "--gpu", "0"], WORKS, 64)
    begin("moves", ["--gpumem", "1Gi", "--oversubscribe", "1Gi", "--gpu", "1"], WORKS, 1500)
    begin("holds", ["--gpumem", "8Gi", "--gpu", "0"], TENANT, 512 * MIB)
    begin("storms", ["--gpumem", "1Gi", "--gpu", "0"], STORMS)
    say("four containers: one works under a cap, one past its memory, one holds, one is refused again and again")


def state(work):
    """Two nodes, one of them the agent's and one with MIG; a quota."""
    gpus = [
        {"id": f"GPU-{n:08}-1111-2222-3333-444444444444", "index": n, "count": 10, "devmem": 16384, "devcore": 100,
         "type": "NVIDIA-A100", "mode": "hami-core", "numa": 0, "health": True}
        for n in range(2)
    ]
    profile = {"name": "1g.10gb", "memoryMB": 9728, "core": 14, "sliceCount": 1,
               "placements": [{"start": n, "size": 1} for n in range(7)]}
    mig = [{"id": "GPU-mig", "count": 7, "devmem": 81920, "devcore": 100, "type": "NVIDIA-H100", "mode": "mig",
            "health": True, "migProfiles": [profile]}]

    def node(name, devices):
        slots = {"nvidia.com/gpu": str(10 * len(devices))}
        return {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": json.dumps(devices)}},
                "status": {"capacity": slots, "allocatable": slots}}

    quota = {"metadata": {"name": "q", "namespace": "research"},
             "spec": {"hard": {"limits.nvidia.com/gpumem": "20000", "limits.nvidia.com/gpucores": "100"}}}
    namespaces = [{"metadata": {"name": name}} for name in ("research", "vgpu-system")]
    path = os.path.join(work, "state.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"namespaces": namespaces, "nodes": [node("check", gpus), node("mig", mig)], "pods": [],
                   "resourceQuotas": [quota]}, file)
    return path


def webhook(ends, binaries, work, cluster):
    """The webhook with the scheduler's cluster: its reviews' address and its figures'."""
    config = os.path.join(work, "kubeconfig")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                   "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                   "clusters": [{"name": "c", "cluster": {"server": f"http://{cluster}"}}],
                   "users": [{"name": "u", "user": {}}]}, file)
    command = [f"{binaries}/vgpu-webhook", "--kubeconfig", config, "--namespace", "vgpu-system", "--identity", "one",
               "--http_bind", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"]
    return listens(ends, work, "webhook", command, 2)


def plugin(ends, binaries, work):
    """The device plugin: without a kubelet it registers the node's GPUs and watches their health."""
    return listens(ends, work, "plugin", [
        f"{binaries}/vgpu-monitor", "plugin", "--node-name", "check", "--state-dir", f"{work}/state", "--cdi-dir",
        f"{work}/cdi", "--kubelet-dir", f"{work}/kubelet", "--kubeconfig", f"{work}/kubeconfig", "--namespace",
        "vgpu-system", "--manner", "cdi", "--library", f"{binaries}/libvgpu.so", "--metrics-addr", "127.0.0.1:0",
        "--node-config-file", f"{work}/none.json"])


class Faults:
    """A GPU that meets a hardware fault again and again, and a program's own on another."""

    def __init__(self, binaries):
        self.command, self.ended = f"{binaries}/sim-fault", threading.Event()
        threading.Thread(target=self.go_on, daemon=True).start()

    def go_on(self):
        while not self.ended.wait(1):
            for fault in ("xid:1=48", "xid:0=31"):
                subprocess.run([self.command, fault], capture_output=True, timeout=10, check=True)

    def stop(self):
        self.ended.set()


class Asks:
    """Pods that come and go, so that every counter counts: placed, waiting, refused, not ours, unreadable."""

    def __init__(self, client, reviews):
        self.client, self.reviews, self.ended = client, reviews, threading.Event()
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def some(self):
        # Held for the whole check, so that panels of what is given have something.
        self.place("train-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30})
        self.place("cut-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}, {"nvidia.com/vgpu-mode": "mig"})
        self.place("waits-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 900000})
        # Reserved and never bound: it runs out.
        self.place("forgotten-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}, bind=False)
        thread = threading.Thread(target=self.go_on, daemon=True)
        thread.start()
        wait_for("the webhook to answer", lambda: self.review("first", {"nvidia.com/gpu": 1}))

    def pod(self, name, limits, annotations=None):
        return {"metadata": {"name": name, "namespace": "research", "annotations": annotations or {}},
                "spec": {"schedulerName": "hami-scheduler", "containers": [
                    {"name": "main", "image": "example/work",
                     "resources": {"limits": {name: str(value) for name, value in limits.items()}}}]}}

    def place(self, name, limits, annotations=None, bind=True):
        pod = self.client.create(self.pod(name, limits, annotations))
        found = self.client.filter(pod, ["check", "mig"])
        if found.nodes and bind:
            self.client.bind(pod, found.nodes[0])
        return found

    def review(self, name, limits, operation="CREATE", body=None):
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": str(uuid.uuid4()), "operation": operation, "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "name": name, "namespace": "research",
            "userInfo": {}, "object": {"apiVersion": "v1", "kind": "Pod", **self.pod(name, limits)}}}
        data = body or json.dumps(review).encode()
        request = urllib.request.Request(f"https://{self.reviews}/webhook", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.context) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            return error.read()
        except OSError:
            return None

    def go_on(self):
        number = 0
        while not self.ended.wait(0.3):
            number += 1
            name = f"passes-{number}"
            with contextlib.suppress(ApiError, Denied, OSError):
                self.review(name, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100})
                self.review(name, {"cpu": 1})
                for percent in (150, 1000):
                    self.review(name, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": percent})
                self.review(name, {}, body=b"{")
                self.place(name, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100})
                self.client.delete("research", name)
                # A binding of a pod that is not there fails.
                self.client.bind({"metadata": {"name": "unknown", "namespace": "research", "uid": "x"}}, "check")

    def stop(self):
        self.ended.set()


def recorded(ends):
    """recorded-agent.txt as a target."""
    with open(os.path.join(HERE, "recorded-agent.txt"), encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line and not line.startswith("#")]

    class Target(http.server.BaseHTTPRequestHandler):
        scrapes = 0

        def do_GET(self):
            Target.scrapes += 1
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            for line in lines:
                series, value = line.lstrip("+").rsplit(" ", 1)
                value = float(value) * (Target.scrapes if line.startswith("+") else 1)
                self.wfile.write(f"{series} {value}\n".encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ends.callback(server.shutdown)
    return "127.0.0.1:%d" % server.server_port


def listens(ends, work, name, command, count=1):
    """Starts it and reads from its log where it listens: one address, or a list of `count`."""
    path = os.path.join(work, f"{name}.log")
    log = open(path, "w", encoding="utf-8")
    process = start(ends, [*command, "--log-format", "json"], stdout=log, stderr=log)

    def addresses():
        assert process.poll() is None, f"{name} has ended:\n{open(path, encoding='utf-8').read()[-2000:]}"
        found = []
        with open(path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, KeyError):
                    fields = json.loads(line)["fields"]
                    found += [fields[key] for key in ("address", "metrics") if key in fields]
        return found[:count] if len(found) >= count else None

    found = wait_for(f"{name} to listen", addresses)
    return found[0] if count == 1 else found


def dashboards():
    for path in sorted(glob.glob(f"{CHART}/dashboards/*.json")):
        with open(path, encoding="utf-8") as file:
            yield os.path.basename(path)[:-5], json.load(file)


def substituted(query):
    """As Grafana fills it in with "All" chosen, and a rate's interval of a few scrapes."""
    query = query.replace("$__rate_interval", "5s").replace("$__range", "20s").replace("${datasource}", "x")
    query = re.sub(r"\$(node|namespace|team|pod)\b", ".*", query)
    assert "$" not in query, f"a variable is left: {query}"
    # The programs have run for seconds.
    return re.sub(r"\[(1h|10m)\]", "[20s]", query)


def panels():
    for name, dashboard in dashboards():
        titles = set()
        for panel in dashboard["panels"]:
            assert panel["title"] and panel["title"] not in titles, f"{name}: no title of its own: {panel['title']!r}"
            titles.add(panel["title"])
            if panel["type"] == "row":
                continue
            assert panel["description"], f"{name}: {panel['title']}: no description"
            assert panel["fieldConfig"]["defaults"]["unit"], f"{name}: {panel['title']}: no unit"
            for target in panel["targets"]:
                yield f"panel {name}: {panel['title']} ({target['refId']})", substituted(target["expr"])


def variables():
    for name, dashboard in dashboards():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
                yield f"variable {name}: {variable['name']}", f'count by ({label}) ({substituted(series)}) and on () vector(1)'


# Seconds, so that the expressions can be asked of programs that have just begun.
def hurried(expr):
    expr = re.sub(r"\[(5m|10m|15m|30m|1h|6h)\]", "[20s]", expr)
    return re.sub(r" offset \w+", "", expr)


def selectors(expr):
    """Each selector of an expression, without range and offset."""
    return set(re.findall(r"\b(?:vgpu|hami)_\w+(?:\{[^}]*\})?", expr))


def rules(ask):
    """Of a recording rule the whole expression; of an alert, which says nothing while all is well, what it looks at."""
    for group in ask.api("rules")["groups"]:
        for rule in group["rules"]:
            name = rule["name"]
            if rule["type"] == "recording":
                yield f"rule {name}", hurried(rule["query"])
                # A rule that looks back for minutes has nothing to record yet.
                if not re.search(r"\[\d+[mh]\]", rule["query"]):
                    yield f"rule {name} (recorded)", name
                continue
            for key in ("summary", "description", "runbook_url"):
                assert rule["annotations"].get(key), f"{name}: no {key}"
            for number, selector in enumerate(sorted(selectors(rule["query"]))):
                yield f"rule {name} ({number})", selector


def answer(ask, query):
    """Nothing where the query returns series with numbers, else why not."""
    try:
        found = ask(query)
    except urllib.error.HTTPError as error:
        return json.loads(error.read()).get("error", str(error))
    except OSError as error:
        return str(error)
    if not found:
        return "no series"
    if all(math.isnan(value) for _, value in found):
        return "no number"
    return None


def sick(ask):
    wrong = []
    for group in ask.api("rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] == "err":
                wrong.append(f"{rule['name']}: {rule.get('lastError', '')}")
    for target in ask.api("targets")["activeTargets"]:
        if target["lastError"]:
            wrong.append(f"{target['scrapeUrl']}: {target['lastError']}")
    for line in wrong:
        say(line)
    return wrong


# Their cause is there, so they fire or are about to.
CAUSED = {"VgpuOutOfMemoryStorm", "VgpuPendingShrink", "VgpuGpuUnhealthy", "VgpuGpuXid", "VgpuUnmanagedProcess",
          "VgpuPodsPending", "VgpuWebhookRefusesMuch"}


def alerts(ask):
    return {labels["alertname"] for labels, _ in ask('ALERTS{alertname=~"Vgpu.+"}')}


if __name__ == "__main__":
    main()
