"""The inside of prometheus-check: starts containers, the agent and Prometheus, and compares what
Prometheus says with what `vgpu top --json` says.

Called with the folder of the binaries and a working folder, on (simulated) GPUs. Listens on loopback
only, waits for nothing longer than a minute, and ends what it started.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

MIB = 1 << 20
RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "charts", "vgpu", "rules")

# A tenant: takes memory by cuMemAlloc, says what the driver answered, and holds until its input ends.
TENANT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
answers = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
answers.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
for size in sys.argv[1:]:
    answers.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size))))
print(*answers, flush=True)
sys.stdin.read()
"""

# One that computes: kernels of 1 ms, by the name that the simulated GPU reads their time from, a graph
# of nothing, a copy and a host function; then it holds.
COMPUTES = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, module, function, pointer = (
    ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64())
answers = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
answers.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
ptx = b".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry spin__1ms() { ret; }\\n"
answers.append(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
answers.append(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin__1ms"))
answers.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)))
for number in range(int(sys.argv[1])):
    answers.append(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
answers.append(cuda.cuMemsetD8Async(pointer, 0, ctypes.c_size_t(4096), None))
graph, work = ctypes.c_void_p(), ctypes.c_void_p()
answers.append(cuda.cuGraphCreate(ctypes.byref(graph), 0))
answers.append(cuda.cuGraphInstantiateWithFlags(ctypes.byref(work), graph, ctypes.c_ulonglong(0)))
answers.append(cuda.cuGraphLaunch(work, None))
answers.append(cuda.cuCtxSynchronize())
print(*sorted(set(answers)), flush=True)
sys.stdin.read()
"""


def main():
    binaries, work = sys.argv[1:]
    board = os.path.join(work, "board")
    os.mkdir(board, 0o755)
    with contextlib.ExitStack() as ends:
        check(binaries, work, board, ends)


def check(binaries, work, board, ends):
    def vgpu(*args):
        command = [f"{binaries}/vgpu", args[0], "--board", board, *args[1:]]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def top():
        return json.loads(vgpu("top", "--json"))

    def begin(name, options, program, arguments, expected):
        command = [f"{binaries}/vgpu", "run", "--board", board, *options, "--name", name, "--"]
        command += [sys.executable, "-c", program, *map(str, arguments)]
        tenant = start(ends, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answers = tenant.stdout.readline().split()
        assert answers == expected, f"{name}: the driver answered {answers}, expected {expected}"

    def run(name, limit, sizes, expected):
        begin(name, ["--gpumem", limit], TENANT, sizes, expected)
        say(f"{name}: limit {limit}, asked for {[size // MIB for size in sizes]} MiB, answers {expected}")

    # Two are refused once each (2 is CUDA_ERROR_OUT_OF_MEMORY), one is within its limit.
    run("train", "4Gi", [3072 * MIB, 2048 * MIB], ["0", "0", "0", "0", "2"])
    run("serve", "2Gi", [512 * MIB, 1 * MIB], ["0", "0", "0", "0", "0"])
    run("notebook", "1Gi", [64 * MIB, 4096 * MIB], ["0", "0", "0", "0", "2"])
    compute = ["--gpumem", "1Gi", "--gpucores", "40", "--floor", "20", "--priority", "3"]
    begin("compute", compute, COMPUTES, [300], ["0"])
    say("compute: 300 kernels of 1 ms and a graph under 40 % of a GPU")
    serve = next(container for container in top()["containers"] if container["name"] == "serve")
    make_odd(board, serve["path"])

    address = start_agent(ends, binaries, board, work)
    ask = start_prometheus(ends, work, [address], glob.glob(f"{RULES}/*.yaml"))

    compare("the numbers of vgpu top", lambda: differences(top(), ask))
    odd = 'odd "name" \\ {a="b"} 1?ü'
    labels = {"namespace": "research", "pod": "odd-0", "container": odd, "vdevice_index": "0"}
    compare("a hostile name is one label", lambda: expect(ask, "hami_vgpu_memory_used_bytes", labels, [0]))
    compare("a broken region is counted", lambda: expect(ask, "vgpu_monitor_broken_regions", {}, [1]))
    computes = {"container": "compute", "vdevice_index": "0"}
    asked = [("asked", 0.4), ("floor", 0.2), ("granted", 0.4)]
    compare(
        "what was asked, what is kept, and what the arbiter grants",
        lambda: sum((expect(ask, f"vgpu_container_compute_{name}_ratio", computes, [share]) for name, share in asked), [])
        + expect(ask, "vgpu_container_priority", {"container": "compute"}, [3])
        + expect(ask, "vgpu_container_compute_policy_info", {"container": "compute", "policy": "floor"}, [1])
        + expect(ask, "vgpu_container_kernel_launches_total", computes, [300])
        + expect(ask, "vgpu_container_graph_launches_total", computes, [1]),
    )
    compare("a cap made it wait", lambda: positive(ask, "vgpu_container_compute_throttled_seconds_total", computes))
    compare("the last launch grows old", lambda: positive(ask, "vgpu_container_last_launch_elapsed_seconds", computes))
    compare(
        "one arbiter serves all",
        lambda: expect(ask, "vgpu_monitor_arbiter_leads", {}, [1])
        + (["a heartbeat is old"] if ask("vgpu_container_arbiter_heartbeat_age_seconds{pod=''} > 1") else []),
    )
    compare("the build", lambda: expect(ask, "hami_build_info", {}, [1]))
    one_minute = 'count({__name__=~".+", job="vgpu"})'
    say(f"{int(ask(one_minute)[0][1])} series in Prometheus")

    vgpu("set", "train", "--gpumem", "2Gi")
    compare(
        "a limit lowered below what is used is pending",
        lambda: expect(ask, "vgpu_container_pending_shrink", {"container": "train", "vdevice_index": "0"}, [1])
        + expect(ask, "hami_vgpu_memory_limit_bytes", {"container": "train", "vdevice_index": "0"}, [2048 * MIB])
        + differences(top(), ask),
    )

    serve = next(container for container in top()["containers"] if container["name"] == "serve")
    os.kill(serve["processes"][0]["host_pid"], signal.SIGKILL)
    compare(
        "what a killed container held is gone",
        lambda: expect(ask, "hami_vgpu_memory_used_bytes", {"container": "serve"}, [])
        + differences(top(), ask),
    )
    compare("no sample was dropped and no rule failed", lambda: complaints(ask))


def make_odd(board, model):
    """A pod whose container's name wants to be more than a label, and one whose region is a pipe.

    Both stand beside the users' directories, as the node agent's do: `vgpu` clears away what has
    ended of a user's own.
    """
    odd, broken = os.path.join(board, "pods", "odd"), os.path.join(board, "pods", "broken")
    os.mkdir(os.path.dirname(odd), 0o755)
    shutil.copytree(model, odd)
    os.chmod(odd, 0o700)
    path = os.path.join(odd, "container.json")
    with open(path, encoding="utf-8") as file:
        labels = json.load(file)
    labels["name"] = labels["container"] = 'odd "name" \\ {a="b"} 1\nü'
    labels |= {"namespace": "research", "pod": "odd-0", "runner_pid": 0}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(labels, file)
    os.mkdir(broken, 0o700)
    shutil.copy(os.path.join(odd, "limits"), broken)
    os.mkfifo(os.path.join(broken, "region"), 0o600)


def start_agent(ends, binaries, board, work):
    log = open(os.path.join(work, "agent.log"), "w+", encoding="utf-8")
    command = [f"{binaries}/vgpu-monitor", "--root", board, "--metrics-addr", "127.0.0.1:0"]
    command += ["--legacy-metrics", "--node-name", "check", "--log-format", "json"]
    agent = start(ends, command, stderr=log)

    def address():
        log.seek(0)
        for line in log.read().splitlines():
            address = json.loads(line)["fields"].get("address")
            if address:
                return address
        assert agent.poll() is None, "vgpu-monitor has ended"
        return None

    address = wait_for("vgpu-monitor to listen", address)
    for kind in ["text/plain", "application/openmetrics-text"]:
        request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": kind})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith(kind), answer.headers
            text = answer.read().decode()
        assert text.endswith("\n# EOF\n") == (kind != "text/plain")
        if kind == "text/plain":
            # promtool knows the older format only; about the older names it has its opinion.
            tool = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
            )
            lines = (tool.stdout + tool.stderr).splitlines()
            bad = [line for line in lines if "snake_case" not in line]
            assert not bad, bad
    say(f"vgpu-monitor serves both formats on {address}, and promtool reads them")
    return address


def start_prometheus(ends, work, targets, rules):
    """Begins to scrape and to evaluate each second; the way to ask it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    rules = [at_every_second(path, work) for path in rules]
    config = os.path.join(work, "check.yml")
    with open(config, "w", encoding="utf-8") as file:
        file.write("global: {scrape_interval: 1s, evaluation_interval: 1s}\n")
        file.write(f"rule_files: {json.dumps(rules)}\n")
        jobs = [{"job_name": "vgpu", "honor_labels": True, "static_configs": [{"targets": targets}]}]
        file.write(f"scrape_configs: {json.dumps(jobs)}\n")
    log = open(os.path.join(work, "prometheus.log"), "w", encoding="utf-8")
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={work}/data"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    process = start(ends, command, stdout=log, stderr=log)

    def api(path, **parameters):
        url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def ask(query):
        """Pairs of labels and value."""
        found = api("query", query=query)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    ask.api = api

    def scraped():
        assert process.poll() is None, f"prometheus has ended, see its log:\n{open(log.name).read()[-2000:]}"
        try:
            return len(ask("up == 1")) == len(targets)
        except OSError:
            return None

    wait_for("Prometheus to scrape every target", scraped)
    say(f"Prometheus scrapes {len(targets)} targets and evaluates the rules, every second; it answers on {address}")
    return ask


def at_every_second(path, work):
    """A copy of the rules without their groups' own intervals.

    Prometheus evaluates a group of a minute for the first time up to a minute after it starts: until then
    nothing says whether its rules work.
    """
    copy = os.path.join(work, os.path.basename(path))
    with open(path, encoding="utf-8") as original, open(copy, "w", encoding="utf-8") as file:
        file.writelines(line for line in original if not line.strip().startswith("interval:"))
    return copy


def expect(ask, series, labels, values):
    selector = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
    found = [value for _, value in ask(f"{series}{{{selector}}}")]
    return [] if found == values else [f"{series}{{{selector}}} is {found}, expected {values}"]


def positive(ask, series, labels):
    selector = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
    found = [value for _, value in ask(f"{series}{{{selector}}}")]
    return [] if len(found) == 1 and found[0] > 0 else [f"{series}{{{selector}}} is {found}"]


def differences(document, ask):
    """The differences between Prometheus and `vgpu top`, for every series that both know."""
    wanted = {}

    def want(series, labels, value):
        wanted.setdefault(series, {})[tuple(sorted(labels.items()))] = float(value)

    for gpu in document["gpus"]:
        labels = {
            "device_index": str(gpu["index"]),
            "device_uuid": gpu["uuid"],
            "device_type": "NVIDIA-" + gpu["name"],
        }
        named = labels | {"node": "check"}
        want("hami_host_gpu_memory_used_bytes", named, gpu["used_bytes"])
        if gpu["utilization_percent"] is not None:
            want("hami_host_gpu_utilization_ratio", named, gpu["utilization_percent"])
            want("hami_host_gpu_memory_controller_utilization_ratio", labels, 0)
        legacy = dict(zip(["deviceidx", "deviceuuid", "devicetype"], labels.values())) | {"nodeid": "check"}
        want("HostGPUMemoryUsage", legacy, gpu["used_bytes"])
    for container in document["containers"]:
        whole = {name: container[name] for name in ["namespace", "pod", "container"]} | {"node": "check"}
        want("vgpu_container_oom_total", whole, container["ooms"])
        want("vgpu_container_refused_calls_total", whole, container["refused"])
        want("vgpu_container_waits_expired_total", whole, container["waits_ran_out"])
        want("vgpu_container_processes", whole, len(container["processes"]))
        want("vgpu_container_priority", whole, container["priority"])
        want("vgpu_container_compute_policy_info", whole | {"policy": container["policy"]}, 1)
        for group, calls in container["hook_calls"].items():
            want("vgpu_container_hook_calls_total", whole | {"group": group}, calls)
        for device in container["devices"]:
            labels = whole | {"vdevice_index": str(device["index"]), "device_uuid": device["uuid"]}
            legacy = ["podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"]
            legacy = dict(zip(legacy, (text for name, text in labels.items() if name != "node")))
            used, limit = device["used_bytes"], device["limit_bytes"] or device["physical_bytes"]
            want("hami_vgpu_memory_used_bytes", labels, used)
            want("hami_container_device_memory_bytes", labels, used)
            want("hami_vgpu_memory_limit_bytes", labels, limit)
            want("hami_vgpu_memory_buffer_bytes", labels, device["buffer_bytes"])
            want("hami_vgpu_memory_context_bytes", labels, device["context_bytes"])
            want("hami_vgpu_memory_module_bytes", labels, device["module_bytes"])
            want("vgpu_container_unaccounted_bytes", labels, device["unaccounted_bytes"])
            want("vgpu_container_pending_shrink", labels, device["pending_shrink"])
            want("vgpu_container_compute_asked_ratio", labels, (device["cap_percent"] or 100) / 100)
            if device["floor_percent"]:
                want("vgpu_container_compute_floor_ratio", labels, device["floor_percent"] / 100)
            works = ["launches", "graph_launches", "copies", "host_functions"]
            if any(device[work] for work in works):
                want("vgpu_container_kernel_launches_total", labels, device["launches"])
                want("vgpu_container_graph_launches_total", labels, device["graph_launches"])
                want("vgpu_container_copies_total", labels, device["copies"])
                want("vgpu_container_copied_bytes_total", labels, device["copy_bytes"])
                want("vgpu_container_host_functions_total", labels, device["host_functions"])
                want("vgpu_container_compute_waits_total", labels, device["waits"])
                want("vgpu_container_compute_throttled_seconds_total", labels, device["throttled_ns"] / 1e9)
            want("vGPU_device_memory_usage_in_bytes", legacy, used)
            want("vGPU_device_memory_limit_in_bytes", legacy, limit)
            parts = {"context": "context_bytes", "module": "module_bytes", "data": "buffer_bytes"}
            parts = {label: str(device[field]) for label, field in parts.items()} | {"offset": "0"}
            want("Device_memory_desc_of_container", legacy | parts, used)
    wrong = []
    for series, samples in wanted.items():
        # An empty label is no label to Prometheus.
        expected = {tuple(pair for pair in labels if pair[1]): value for labels, value in samples.items()}
        ours = {"__name__", "job", "instance"}
        found = {
            tuple(sorted((name, text) for name, text in labels.items() if name not in ours)): value
            for labels, value in ask(series)
        }
        wrong += [f"{series}{dict(k)} is missing" for k in expected.keys() - found.keys()]
        wrong += [f"{series}{dict(k)} is too much" for k in found.keys() - expected.keys()]
        wrong += [
            f"{series}{dict(k)} is {found[k]}, vgpu top says {expected[k]}"
            for k in expected.keys() & found.keys()
            if expected[k] != found[k]
        ]
    return wrong


def complaints(ask):
    wrong = []
    for target in ask.api("targets")["activeTargets"]:
        if target["lastError"]:
            wrong.append(f"the last scrape: {target['lastError']}")
    for group in ask.api("rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                wrong.append(f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}")
    return wrong


def compare(what, find):
    """Until nothing is wrong: a scrape takes up to a second to arrive."""
    found = []

    def right():
        found[:] = find()
        return not found

    try:
        wait_for(what, right)
    except AssertionError:
        for line in found[:20]:
            print("      " + line, flush=True)
        raise
    say(f"as it should be: {what}")


def wait_for(what, ready, seconds=30):
    end = time.monotonic() + seconds
    while True:
        found = ready()
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds} s for: {what}"
        time.sleep(0.2)


def start(ends, command, **options):
    process = subprocess.Popen(command, **options)
    ends.callback(end, process)
    return process


def end(process):
    """Input closed, then asked, then made to."""
    if process.stdin:
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def say(text):
    print("    " + text, flush=True)


if __name__ == "__main__":
    main()
