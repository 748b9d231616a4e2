"""The programs half of aarch64-check: what runs on nodes and in clusters, for 64-bit ARM, under qemu.

  aarch64_check.py BUILT WORK [RUNNER...]

BUILT is cargo's folder of programs and libraries for ARM, WORK an empty one. RUNNER is the command that runs such a
program, and is itself a program of this machine. Without a RUNNER the programs are taken for this machine's own.
"""
import base64
import http.client
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT, WORK, RUNNER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
# Seconds. qemu translates each instruction, and is slow beside other work.
PATIENCE = 120


class Wrong(Exception):
    """A check that failed, in a sentence."""


def need(truth, text):
    if not truth:
        raise Wrong(text)


def until(what, found):
    """The first true answer of `found`."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
        time.sleep(0.1)
    raise Wrong(f"after {PATIENCE} s there is still no {what}")


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VGPU_", "CUDA_", "LD_", "KUBE"))}
    return {**kept, "LD_LIBRARY_PATH": str(WORK / "lib"), "VGPU_SIM_BOARD": str(WORK / "gpus"), **more}


def program(name, *arguments):
    return [*RUNNER, str(BUILT / name), *map(str, arguments)]


def run(name, *arguments, ok=True):
    done = subprocess.run(program(name, *arguments), capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    need(not ok or done.returncode == 0, f"{name} {' '.join(map(str, arguments))}: {done.returncode}, {done.stderr[-600:]}")
    return done


class Server:
    """A program that serves until the end of a `with`. It says its addresses in its log, which is JSON."""

    def __init__(self, name, *arguments):
        self.name, self.log, self.lines = name, [], queue.Queue()
        self.child = subprocess.Popen(program(name, *arguments, "--log-format", "json"), stderr=subprocess.PIPE, text=True, env=environment())
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stderr:
            self.lines.put(line)
        self.lines.put(None)

    def says(self, text):
        """The fields of the first line with this text."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            need(line is not None, f"{self.name} never says \"{text}\", but: {''.join(self.log)[-1500:]}")
            self.log.append(line)
            if text in line:
                return json.loads(line)["fields"]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.child.send_signal(signal.SIGTERM)
        try:
            code = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = self.child.wait()
        if kind is None:
            need(code == 0, f"{self.name} ends with {code} when it is asked to stop")


def ask(address, path, body=None, connection=None):
    """(status, text) of an answer."""
    connection = connection or http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def becomes_ready(address):
    until(f"readiness of {address}", lambda: ask(address, "/readyz")[0] == 200)


def machine(path):
    """The number of the processor of an ELF file, or none."""
    head = path.read_bytes()[:20]
    return int.from_bytes(head[18:20], "little") if head.startswith(b"\x7fELF") else None


PROGRAMS = ("vgpu", "vgpu-monitor", "vgpu-scheduler", "vgpu-webhook")


def every_program_starts():
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    for name in PROGRAMS:
        if RUNNER:
            need(machine(BUILT / name) == 183, f"{name} is for processor {machine(BUILT / name)}, not for 64-bit ARM (183)")
        printed = run(name, "--version").stdout
        need(printed.strip() == f"{name} {version}", f"{name} --version: {printed}")


def the_agent_installs_the_library_of_its_processor():
    to = WORK / "libraries"
    for _ in range(2):
        run("vgpu-monitor", "install", "--to", to, "--library", BUILT / "libvgpu.so")
    files = [file for file in to.glob("*/libvgpu.so")]
    need(len(files) == 1 and files[0].read_bytes() == (BUILT / "libvgpu.so").read_bytes(), f"{files}")
    # The head of a library of another processor, which the loader would leave out with no more than a warning.
    other = WORK / "other.so"
    content = bytearray((BUILT / "libvgpu.so").read_bytes())
    content[18] = 62 if content[18] == 183 else 183
    other.write_bytes(content)
    done = run("vgpu-monitor", "install", "--to", WORK / "none", "--library", other, ok=False)
    need(done.returncode != 0 and "is a library for" in done.stderr + done.stdout, f"{done.returncode}: {done.stderr}")
    need(not list(WORK.glob("none/*/libvgpu.so")), "a library of another processor was installed")


class Client:
    """vgpu/tests/client.c in a container of `vgpu run`: one command on a line, one answer on a line."""

    def __init__(self, *flags):
        command = program("vgpu", "run", "--board", WORK / "board", "--library", BUILT / "libvgpu.so", *flags, "--", *RUNNER, WORK / "client")
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.answers("ready")

    def answers(self, right):
        answer = self.child.stdout.readline().strip()
        if not answer:
            raise Wrong(f"the program ended instead of \"{right}\": {self.child.stderr.read()[-800:]}")
        need(answer == right, f"the program says \"{answer}\", not \"{right}\"")

    def told(self, line, right):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        self.answers(right)

    def ends(self):
        self.child.stdin.close()
        need(self.child.wait(PATIENCE) == 0, f"vgpu run ends with {self.child.returncode}: {self.child.stderr.read()[-800:]}")


def series(text, name):
    """[(labels, value)] of a metric."""
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.M)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]


def a_container_is_limited_and_shown():
    """A program under `vgpu run`, seen by `vgpu top` and by the exporter, which also asks NVML. It runs no kernel: the
    simulated driver reads a module's image by process_vm_readv, which qemu 7.2 does not have."""
    client = Client("--name", "trial", "--gpumem", "512Mi", "--gpucores", "50")
    try:
        client.told("total", "512")
        client.told("alloc 64", "ok")
        client.told("alloc 512", "2")
        with Server("vgpu-monitor", "--root", WORK / "board", "--metrics-addr", "127.0.0.1:0", "--node-name", "arm") as exporter:
            address = exporter.says('"address"')["address"]
            becomes_ready(address)
            text = until("figure of NVML in /metrics", lambda: (text := ask(address, "/metrics")[1]) and series(text, "vgpu_gpu_power_watts") and text)
        top = json.loads(run("vgpu", "top", "--json", "--board", WORK / "board").stdout)
        [container] = top["containers"]
        device = container["devices"][0]
        need(container["name"] == "trial" and device["limit_bytes"] == 512 << 20, f"vgpu top: {container}")
        need(device["buffer_bytes"] == 64 << 20 and container["ooms"] == 1, f"vgpu top: {container}")
        need(top["gpu_error"] is None and top["gpus"][0]["used_bytes"] >= 64 << 20, f"vgpu top: {top['gpus']}, {top['gpu_error']}")
        mine = {"node": "arm", "container": "trial", "device_uuid": device["uuid"]}

        def value(name, **labels):
            found = [value for others, value in series(text, name) if labels.items() <= others.items()]
            need(len(found) == 1, f"{name} with {labels}: {found}")
            return found[0]

        need(value("hami_vgpu_memory_buffer_bytes", **mine) == 64 << 20, "the exporter's buffers")
        need(value("hami_vgpu_memory_limit_bytes", **mine) == 512 << 20, "the exporter's limit")
        need(value("vgpu_container_oom_total", node="arm", container="trial") == 1, "the exporter's refusals")
        need(value("vgpu_monitor_nvml_up", node="arm") == 1, "NVML answers")
        need(value("hami_host_gpu_memory_used_bytes", device_uuid=device["uuid"]) == top["gpus"][0]["used_bytes"], "NVML's memory")
        client.ends()
    finally:
        client.child.kill()


def the_scheduler_places_a_recorded_pod():
    case = json.loads((ROOT / "tests/vectors/hami/003-fit-gpumem-3000-mib.json").read_text())
    [step], [right] = case["steps"], case["expect"]["steps"]
    (WORK / "state.json").write_text(json.dumps({**case["cluster"], "pods": [step["request"]["Pod"]]}))
    config = ROOT / "tests/vectors/hami" / case["deviceConfigFile"]
    with Server("vgpu-scheduler", "--embedded", WORK / "state.json", "--http_bind", "127.0.0.1:0", "--device-config-file", config) as scheduler:
        address = scheduler.says('"serving"')["address"]
        becomes_ready(address)
        status, text = ask(address, "/filter", step["request"])
        answer = json.loads(text)
        need(status == right["httpStatus"] and answer["NodeNames"] == right["response"]["NodeNames"], f"/filter: {status} {text}")
        need(not answer["FailedNodes"] and not answer["Error"], f"/filter: {text}")
        written = json.loads(ask(address, "/api/v1/namespaces/default/pods/p")[1])["metadata"]["annotations"]
        key = "hami.io/vgpu-devices-allocated"
        need(written[key] == right["podAnnotationsPatched"][key], f"{written}")


def patched(document, patch):
    """A JSON Patch of `add` and `replace` on objects and lists."""
    for change in json.loads(patch):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:]]
        at = document
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        need(change["op"] in ("add", "replace"), f"{change}")
        if isinstance(at, list):
            at.insert(len(at) if last == "-" else int(last), change["value"])
        else:
            at[last] = change["value"]
    return document


def the_webhook_answers_a_recorded_review():
    """Its API server is the scheduler's embedded one. The review is sent as an API server sends it: the address from the
    configuration that the webhook wrote, and no other authority than the one in it."""
    recorded = json.loads((ROOT / "tests/vectors/autoscaler.json").read_text())["pods"]["half"]
    (WORK / "empty.json").write_text(json.dumps({"namespaces": [{"metadata": {"name": "vgpu-system"}}], "nodes": [], "pods": []}))
    with Server("vgpu-scheduler", "--embedded", WORK / "empty.json", "--http_bind", "127.0.0.1:0") as scheduler:
        cluster = scheduler.says('"serving"')["address"]
        kubeconfig = WORK / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{cluster}"}}],
            "users": [{"name": "u", "user": {}}],
        }))
        flags = ["--http_bind", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0", "--namespace", "vgpu-system", "--identity", "pod-0",
                 "--shutdown-delay", "0", "--kubeconfig", kubeconfig]
        with Server("vgpu-webhook", *flags) as webhook:
            serving = webhook.says("serving reviews over TLS")
            becomes_ready(serving["metrics"])
            path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vgpu-webhook"
            client = json.loads(ask(cluster, path)[1])["webhooks"][0]["clientConfig"]
            context = ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
            host, port = serving["address"].rsplit(":", 1)
            service = client["service"]
            connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
            connection.sock = context.wrap_socket(
                socket.create_connection((host, int(port)), PATIENCE), server_hostname=f"{service['name']}.{service['namespace']}.svc"
            )
            pod = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": recorded["asked"]}}]},
            }
            review = {
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {
                    "uid": "u-1", "operation": "CREATE", "namespace": "default", "name": "p", "userInfo": {"username": "jane"},
                    "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
                    "object": pod,
                },
            }
            status, text = ask(None, service["path"], review, connection)
            need(status == 200, f"{status} {text}")
            answer = json.loads(text)["response"]
            need(answer["uid"] == "u-1" and answer["allowed"], f"{answer}")
            after = patched(pod, base64.b64decode(answer["patch"]))
            need(after["spec"]["containers"][0]["resources"]["limits"] == recorded["admitted"], f"{after}")
            need(after["spec"]["schedulerName"] == "hami-scheduler", f"{after}")


def an_image_has_all_that_its_programs_load():
    """Packed as for a node, unpacked, and run with nothing but what is in it."""
    target = WORK / "target"
    dist = target / "dist-aarch64"
    (dist / "bin").mkdir(parents=True)
    (dist / "lib/vgpu").mkdir(parents=True)
    for name, to in [*((name, f"bin/{name}") for name in PROGRAMS), ("libvgpu.so", "lib/vgpu/libvgpu.so")]:
        done = subprocess.run(["aarch64-linux-gnu-strip", "--strip-debug", "-o", dist / to, BUILT / name], capture_output=True, text=True)
        need(done.returncode == 0, f"strip {name}: {done.stderr}")
    out = WORK / "images"
    done = subprocess.run(
        [ROOT / "scripts/images", "build", "--no-cargo", "--processor", "aarch64", "--tag", "1", out],
        capture_output=True, text=True, env={**os.environ, "CARGO_TARGET_DIR": str(target)},
    )
    need(done.returncode == 0, f"scripts/images: {done.stderr[-800:]}")
    shutil.rmtree(target)
    for name, programs in (("vgpu-monitor", ("vgpu-monitor", "vgpu")), ("vgpu-scheduler", ("vgpu-scheduler",)), ("vgpu-webhook", ("vgpu-webhook",))):
        rootfs = WORK / "rootfs"
        with tarfile.open(out / f"{name}.tar") as tar:
            blob = lambda digest: tar.extractfile("blobs/sha256/" + digest.removeprefix("sha256:"))
            [entry] = json.load(tar.extractfile("index.json"))["manifests"]
            manifest = json.load(blob(entry["digest"]))
            config = json.load(blob(manifest["config"]["digest"]))
            need(config["architecture"] == "arm64" == entry["platform"]["architecture"], f"{name}: {config['architecture']}, {entry}")
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer["digest"])) as inner:
                    inner.extractall(rootfs, filter="tar")
        need((rootfs / "lib/ld-linux-aarch64.so.1").is_file(), f"{name}: the loader is not in the image")
        files = [path for path in rootfs.rglob("*") if path.is_file() and not path.is_symlink()]
        wrong = [str(path) for path in files if machine(path) not in (None, 183)]
        need(not wrong, f"{name}: of another processor are {wrong}")
        need(name != "vgpu-monitor" or (rootfs / "usr/lib/vgpu/libvgpu.so").is_file(), "the agent's image has no library")
        for each in programs:
            # The loader and all libraries come from the image: this prefix replaces that of the tool chain.
            kept = {"PATH": os.environ["PATH"], "QEMU_LD_PREFIX": str(rootfs)}
            done = subprocess.run([*RUNNER, rootfs / "usr/bin" / each, "--version"], capture_output=True, text=True, env=kept, timeout=PATIENCE)
            need(done.returncode == 0 and done.stdout.startswith(each + " "), f"{each} of the image {name}: {done.stdout} {done.stderr[-400:]}")
        shutil.rmtree(rootfs)
    shutil.rmtree(out)


def prepare():
    (WORK / "lib").mkdir()
    for link, file in (("libcuda.so.1", "libcuda.so"), ("libnvidia-ml.so.1", "libnvidia_ml.so")):
        (WORK / "lib" / link).symlink_to(BUILT / file)
    compiler = "aarch64-linux-gnu-gcc" if RUNNER else "cc"
    subprocess.run([compiler, "-O1", ROOT / "vgpu/tests/client.c", "-o", WORK / "client", "-ldl", "-lpthread"], check=True)


checks = [
    every_program_starts,
    the_agent_installs_the_library_of_its_processor,
    a_container_is_limited_and_shown,
    the_scheduler_places_a_recorded_pod,
    the_webhook_answers_a_recorded_review,
]
if RUNNER:
    checks.append(an_image_has_all_that_its_programs_load)
prepare()
failed = 0
for check in checks:
    name = check.__name__.replace("_", " ")
    try:
        check()
        print(f"ok      {name}", flush=True)
    except (Wrong, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as wrong:
        failed += 1
        print(f"FAILED  {name}: {type(wrong).__name__}: {wrong}", flush=True)
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(failed > 0)
