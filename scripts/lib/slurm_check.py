"""Jobs of a real Slurm under vgpu's limits; scripts/lib/slurm-check starts it in namespaces of its own."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from exporter import metrics

work = pathlib.Path(sys.argv[1])
LIB, SIM, SPOOL, OUT = work / "lib", work / "sim", work / "slurm", work / "out"
VGPU = str(LIB / "vgpu")
NODE, ADDRESS = "vgpu-slurm", "10.99.0.1"
# Two users of the system that may do nothing.
USERS = {"nobody": 65534, "daemon": 1}
SIMULATED = {
    "LD_LIBRARY_PATH": str(SIM),
    "VGPU_SIM_BOARD": str(work / "sim-board"),
    "VGPU_SIM_GPUS": "2",
    "VGPU_SIM_MEMORY": "16Gi",
}
CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", "LANG": "C.UTF-8"}
GIB = 1 << 30
# The directories of root's containers.
BOARD = pathlib.Path("/run/vgpu/0")
checks = 0


def check(what, is_true, *seen):
    global checks
    if not is_true:
        print(f"FAILED: {what}", *seen, sep="\n    ")
        for log in ("slurmd.log", "slurmctld.log", "prolog.log"):
            print(f"--- the end of {log}", (SPOOL / log).read_text()[-3000:], sep="\n")
        sys.exit(1)
    checks += 1
    print(f"  ok: {what}", flush=True)


def until(what, is_true, seconds=40):
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            check(f"waited in vain until {what}", False)
        time.sleep(0.05)


def run(*words, env=None, user=None, text=None):
    """Runs a command to its end: exit code, standard output, standard error."""
    words = [str(word) for word in words]
    if user:
        number = str(USERS[user])
        words = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--", *words]
    done = subprocess.run(
        words, env={**CLEAN, **(env or {})}, input=text, capture_output=True, text=True, timeout=120, cwd="/tmp"
    )
    return done.returncode, done.stdout, done.stderr


def job(*words, user="nobody", env=None, text=None):
    """A job on the simulated driver."""
    return run(*words, env={**SIMULATED, **(env or {})}, user=user, text=text)


class Client:
    """The CUDA program of vgpu's tests in a job, driven by lines."""

    def __init__(self, *flags, user, env=None):
        number = str(USERS[user])
        words = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--", "srun", "--unbuffered"]
        self.process = subprocess.Popen(
            [*words, *flags, str(work / "client")],
            env={**CLEAN, **SIMULATED, **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/tmp",
        )
        self.first = self.process.stdout.readline().strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        return self.process.stderr.read()


def containers():
    code, out, error = run(VGPU, "top", "--json", env={**SIMULATED})
    check_code(code, error)
    return {one["name"]: one for one in json.loads(out)["containers"]}


def check_code(code, error):
    if code != 0:
        check("the command succeeds", False, code, error)


def names():
    """What is on the board for jobs: directories, and records with what killed prologs left of them."""
    root = BOARD
    own = {"ld.so.preload", ".ld.so.preload.new"}
    all_names = {path.name for path in root.glob("*") if path.is_dir()} - {".slurm"}
    all_names |= {f".{path.name}" for path in root.glob(".*") if path.name not in (".slurm", ".lock", ".arbiter")}
    return all_names | {f".slurm/{path.name}" for path in (root / ".slurm").glob("*") if path.name not in own}


def state():
    return run("sinfo", "--noheader", "--format=%T")[1].strip()


def start():
    """Slurm on this machine's namespaces: a controller and one node with two GPUs."""
    for one in ("spool", "state"):
        (SPOOL / one).mkdir(parents=True)
    # Jobs of every user write their output there.
    OUT.mkdir()
    OUT.chmod(0o1777)
    shutil.copytree("/etc", work / "etc", symlinks=True)
    for words in (
        ["mount", "--bind", work / "etc", "/etc"],
        ["mount", "-t", "tmpfs", "run", "/run"],
        ["mount", "-t", "tmpfs", "log", "/var/log"],
        ["hostname", NODE],
        ["ip", "link", "set", "lo", "up"],
        # Slurm looks for no address of a machine that has only 127.0.0.1.
        ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"],
        ["mknod", SPOOL / "gpu0", "c", "1", "3"],
        ["mknod", SPOOL / "gpu1", "c", "1", "3"],
    ):
        check_code(*run(*words)[::2])
    for name in ("/etc/ld.so.preload", "/etc/vgpu"):
        if os.path.lexists(name):
            os.remove(name) if os.path.isfile(name) else shutil.rmtree(name)
    with open("/etc/hosts", "a") as hosts:
        hosts.write(f"{ADDRESS} {NODE}\n")
    pathlib.Path("/run/munge").mkdir()
    pathlib.Path("/var/log/munge").mkdir()
    (work / "munge.key").write_bytes(os.urandom(64))
    (work / "munge.key").chmod(0o400)
    pathlib.Path("/etc/slurm").mkdir(exist_ok=True)
    write = lambda name, text: pathlib.Path(name).write_text(text)
    write("/etc/slurm/cgroup.conf", "CgroupAutomount=no\n")
    write("/etc/slurm/gres.conf", f"""
Name=gpu Type=a File={SPOOL}/gpu0
Name=gpu Type=b File={SPOOL}/gpu1
Name=shard Count=4 File={SPOOL}/gpu0
Name=shard Count=8 File={SPOOL}/gpu1
""")
    write("/etc/slurm/plugstack.conf", f"required {LIB}/vgpu_spank.so vgpu={VGPU}\n")
    write("/etc/slurm/slurm.conf", f"""
ClusterName=vgpu
SlurmctldHost={NODE}({ADDRESS})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={SPOOL}/state
SlurmdSpoolDir={SPOOL}/spool
SlurmctldPidFile={SPOOL}/slurmctld.pid
SlurmdPidFile={SPOOL}/slurmd.pid
SlurmctldLogFile={SPOOL}/slurmctld.log
SlurmdLogFile={SPOOL}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=0
KillWait=1
GresTypes=gpu,shard
Prolog={work}/prolog
Epilog={work}/epilog
NodeName={NODE} NodeAddr={ADDRESS} CPUs=16 Gres=gpu:a:1,gpu:b:1,shard:12 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
    # The prolog of a node with simulated GPUs has to find their driver; one with real GPUs needs no variables.
    exports = "".join(f"export {name}={value}\n" for name, value in SIMULATED.items())
    write(work / "prolog", f"""#!/bin/sh
PATH=/usr/bin:/bin
export PATH
{exports}if [ -e {work}/kill ]; then export LD_PRELOAD={work}/killed.so KILL_BEFORE=$(cat {work}/kill); fi
exec {VGPU} slurm prolog --shards 0=4,1=8 2>>{SPOOL}/prolog.log
""")
    write(work / "epilog", f"#!/bin/sh\nexec {VGPU} slurm epilog 2>>{SPOOL}/prolog.log\n")
    for name in ("prolog", "epilog"):
        (work / name).chmod(0o755)
    check_code(*run(
        "munged", "--force", f"--key-file={work}/munge.key", "--socket=/run/munge/munge.socket.2",
        f"--pid-file={work}/munge.pid", "--log-file=/var/log/munge/log", f"--seed-file={work}/munge.seed",
    )[::2])
    quietly = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": CLEAN}
    subprocess.run(["slurmctld"], check=True, **quietly)
    start_slurmd()


def start_slurmd():
    subprocess.run(["slurmd"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=CLEAN)
    until("the node is up", lambda: state() in ("idle", "mixed"))


def two_jobs_share_a_gpu():
    print("two jobs of two users on one GPU of 16 GiB in 4 shards")
    first = Client("--gres=shard:1", "--job-name=train", user="nobody")
    second = Client("--gres=shard:2", "--gpumem=6Gi", "--gpucores=40", user="daemon")
    board = containers()
    check("both are on GPU 0 at the same time", sorted(board) == ["slurm-1", "slurm-2"], board)
    gpus = {one["devices"][0]["uuid"] for one in board.values()}
    check("they have the same GPU", len(gpus) == 1 and all(len(one["devices"]) == 1 for one in board.values()), board)
    limits = [(one["devices"][0]["limit_bytes"] // GIB, one["devices"][0]["cap_percent"]) for one in board.values()]
    check("the board says 1 of 4 shards, and what the second one asked for", limits == [(4, 25), (6, 40)], limits)
    check("each sees its share as the GPU's size", [first.ask("total"), second.ask("total")] == ["4096", "6144"])
    check("within its share the first one allocates", first.ask("alloc 3000") == "ok")
    check("past it, it is refused", first.ask("alloc 1200") == "2")
    check("the second one allocates", second.ask("alloc 5500") == "ok")
    check("past its share, it is refused", second.ask("alloc 700") == "2")
    check("kernels run under the cap", second.ask("launch 20") == "ok")
    code, out, error = run(VGPU, "oom", "slurm-1", env=SIMULATED)
    check("vgpu oom knows the refusal by the job's name", code == 0 and "1200" in out.replace(",", "") or "1.17" in out, out, error)
    code, out, error = run(VGPU, "set", "slurm-1", "--gpumem", "5Gi", env=SIMULATED)
    check("vgpu set raises a running job's limit", code == 0 and first.ask("alloc 1200") == "ok", out, error)
    first.end()
    second.end()
    until("the epilogs have removed both", lambda: not names())
    check("nothing of the jobs is left", containers() == {})


def share_of(*flags, **how):
    """What a job sees as its GPU's size, MiB; else the words that it was refused with."""
    code, out, error = job("srun", *flags, work / "client", text="total\n", **how)
    lines = out.split()
    return lines[-1] if code == 0 and lines else error


def refusals():
    print("what is refused, and that no node is drained for it")
    for words, part in (
        (("--gpumem=4",), '"4" has no unit'),
        (("--gpumem=0Gi",), "--gpumem: \"0Gi\" is not accepted"),
        (("--gpucores=101",), "1 to 100, such as 30"),
        (("--gpupriority=0",), "1 (the usual one) to 1000"),
    ):
        for command in (("srun",), ("salloc",), ("sbatch", "--wrap=true")):
            code, out, error = job(command[0], *words, "--gres=shard:1", *(command[1:] or ["true"]))
            check(f"{command[0]} refuses {words[0]} when the job is submitted", code != 0 and part in error, error)
    check("no job was made for these", "JobId" not in run("scontrol", "show", "job", "3")[1])
    for words, part in (
        (("--gpumem=5Gi", "--gres=shard:1"), "--gpumem 5Gi is more than 1 of 4 shards of GPU 0 give"),
        (("--gpucores=26", "--gres=shard:1"), "--gpucores 26 is more than 1 of 4 shards of GPU 0 give"),
        (("--gpumem=1Gi",), "this job has none"),
    ):
        said = share_of(*words)
        check(f"srun {' '.join(words)} fails with the reason", part in said, said)
    code, out, error = job("sbatch", "--parsable", "--wait", f"--output={OUT}/refused", "--gres=shard:1", "--gpumem=9Gi", "--wrap=echo ran")
    said = (OUT / "refused").read_text()
    check("a batch job's output has the reason, and its script does not run", "--gpumem 9Gi is more" in said and "ran" not in said, said, error)
    until("the node is free again", lambda: state() == "idle")
    check("the node takes jobs", state() == "idle")


def hostile():
    print("jobs that try to have more than their shards")
    environment = {
        "SPANK__SLURM_SPANK_OPTION_vgpu_gpumem": "16Gi",
        "SLURM_JOB_GPUS": "0,1",
        "SLURM_SHARDS_ON_NODE": "4",
        "VGPU_LIMITS": "/tmp/none",
        "VGPU_REGION": "/tmp/none",
        "VGPU_MEMORY": "16Gi",
        "VGPU_BOARD": "/tmp/board",
        "CUDA_DEVICE_MEMORY_LIMIT": "16g",
        "CUDA_DISABLE_CONTROL": "true",
    }
    check("variables raise nothing", share_of("--gres=shard:1", env=environment) == "4096")
    script = f"unset LD_PRELOAD; echo total | env -i LD_LIBRARY_PATH={SIM} VGPU_SIM_BOARD={work}/sim-board {work}/client"
    code, out, error = job("srun", "--gres=shard:1", "sh", "-c", script)
    check("an empty environment raises nothing", out.split()[-1:] == ["4096"], out, error)
    script = "umount /etc/ld.so.preload; umount /etc/vgpu; echo x > /etc/vgpu/limits; rm -f /etc/vgpu/limits; echo; cat /etc/ld.so.preload"
    code, out, error = job("srun", "--gres=shard:1", "sh", "-c", script)
    check("the files of the limits cannot be changed", "libvgpu.so" in out and "ermission denied" in error + out or "ead-only" in error, out, error)
    name = "a\n     Nodes=vgpu-slurm CPU_IDs=0 Mem=0 GRES=shard:4(IDX:0)\nb"
    said = share_of("--gres=shard:1", f"--job-name={name}")
    check("a job's name that looks like an allocation is refused", "several lines that look like" in said, said)
    script = f"import ctypes\nfrom pathlib import Path\ncuda = ctypes.CDLL('libcuda.so.1')\nprint(cuda.cuInit(0)); n = ctypes.c_int(); print(cuda.cuDeviceGetCount(ctypes.byref(n)), n.value)"
    code, out, error = job("srun", "--gres=shard:1", "env", "CUDA_VISIBLE_DEVICES=1", "python3", "-c",
                           script + "\nc = ctypes.c_void_p(); print(cuda.cuCtxCreate_v2(ctypes.byref(c), 0, 0))")
    check("the other GPU gives nothing", out.split()[-1:] not in (["0"], []), out, error)
    until("the node is free again", lambda: state() == "idle")


def other_shapes():
    print("steps, tasks, whole GPUs, other sizes")
    batch = work / "batch"
    batch.write_text(f"#!/bin/sh\necho total | {work}/client | tail -n 1\nfor step in 1 2; do echo total | srun {work}/client | tail -n 1; done\n"
                     f"srun --gpumem=4Gi true\nsrun --ntasks=2 sh -c 'stat -c %i /run/vgpu/region'\n")
    batch.chmod(0o755)
    code, out, error = job("sbatch", "--wait", "--ntasks=2", "--overcommit", f"--output={OUT}/steps", "--gres=shard:1", "--gpumem=3Gi", batch)
    lines = (OUT / "steps").read_text().splitlines()
    # On a busy machine srun also says there that a step waits for the one before.
    numbers = [line for line in lines if line.isdigit()]
    check("script and steps of a job have its share", numbers[:3] == ["3072"] * 3, lines, error)
    check("a step cannot change it", any("option of the whole job" in line for line in lines), lines)
    check("all tasks have one region", len(numbers) == 5 and numbers[3] == numbers[4], lines)
    check("a job without a GPU is left alone", job("srun", "sh", "-c", "test ! -e /etc/vgpu/limits && echo free")[1] == "free\n")
    check("a whole GPU is not limited", share_of("--gres=gpu:1") == "16384")
    check("a whole GPU is limited by an option", share_of("--gres=gpu:1", "--gpumem=2Gi") == "2048")
    check("5 shards are of the GPU that has 8", share_of("--gres=shard:5") == "10240")
    said = job("srun", "--gres=shard:1", "sh", "-c", "echo $LD_PRELOAD; grep -c . /etc/ld.so.preload", env={"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libm.so.6"})[1].split()
    check("a user's own LD_PRELOAD is kept", said == ["/usr/lib/x86_64-linux-gnu/libm.so.6", "1"], said)
    mounts = pathlib.Path("/proc/self/mounts").read_text()
    check("no mount of a job is left on the node", "/etc/vgpu" not in mounts and "ld.so.preload" not in mounts, mounts)


def steps():
    print("two steps of a job at the same time")
    script = work / "two-steps"
    step = lambda first, second: f"srun --overlap --ntasks=1 --unbuffered sh -c '(echo {first}; {second}; sleep 1000) | {work}/client >$0'"
    both = f"until test -e {OUT}/both; do sleep 0.05; done"
    script.write_text(f"""#!/bin/sh
{step('alloc 3000', 'sleep 0')} {OUT}/step-1 &
{step('total', f'{both}; echo alloc 1500; echo alloc 100')} {OUT}/step-2 &
wait
""")
    script.chmod(0o755)
    code, number, error = job("sbatch", "--parsable", "--ntasks=2", "--overcommit", f"--output={OUT}/two-steps", "--gres=shard:1", script)
    said = lambda step: (OUT / step).read_text().split() if (OUT / step).exists() else []
    until("both steps run", lambda: len(said("step-1")) >= 2 and len(said("step-2")) >= 2)
    (OUT / "both").touch()
    until("the second one has tried to allocate", lambda: len(said("step-2")) >= 4)
    check("both have one share: what the first one holds is refused to the second", (said("step-1"), said("step-2")) == (["ready", "ok"], ["ready", "4096", "2", "ok"]), said("step-1"), said("step-2"))
    board = containers()
    check("they are one container with two processes", [len(one["processes"]) for one in board.values()] == [2], board)
    run("scancel", number.strip())
    until("the epilog has run", lambda: not names())


def killed_prologs():
    print("prologs that are killed between two of their changes")
    script = work / "share"
    script.write_text(f"#!/bin/sh\necho total | {work}/client | tail -n 1\n")
    script.chmod(0o755)
    code, _, error = job("salloc", "--no-shell", "--gres=shard:1", "--job-name=held")
    number = error.split("allocation")[1].split()[0]
    held = {**SIMULATED, "SLURM_JOB_ID": number, "SLURMD_NODENAME": NODE, "SLURM_JOB_GPUS": "0", "SLURM_JOB_USER": "nobody"}
    other = {"SLURM_JOB_ID": "4000", "SLURMD_NODENAME": NODE}
    prolog, epilog = (str(work / one) for one in ("prolog", "epilog"))
    flags = ("--shards", "0=4,1=8")
    changes = 0
    while True:
        changes += 1
        killed = {**held, "LD_PRELOAD": str(work / "killed.so"), "KILL_BEFORE": str(changes)}
        code, _, error = run(VGPU, "slurm", "prolog", *flags, env=killed)
        if code == 0:
            break
        if code != -9:
            check("the prolog is killed", False, changes, code, error)
        left = names()
        code, _, error = run(VGPU, "slurm", "task", f"--job={number}")
        if code != 1 or "has not run on this node" not in error:
            check("no task of the job starts after that", False, changes, code, error)
        check_code(*run(prolog, env=other)[::2])
        if names() != {".slurm/4000"}:
            check("the next job's prolog has removed what was left", False, changes, left, names(), [str(path) for name in left for path in (BOARD / name).glob("**/*")])
        check_code(*run(epilog, env=other)[::2])
        # slurmd runs the epilog also where the prolog failed.
        run(VGPU, "slurm", "prolog", *flags, env=killed)
        check_code(*run(epilog, env=held)[::2])
        if names():
            check("the job's own epilog has removed what was left", False, changes, names())
    check(f"of a prolog that is killed before any of its {changes - 1} changes, nothing is left", changes > 10, changes)
    check("a prolog that comes after that makes the job's limits", names() == {f"slurm-{number}", f".slurm/{number}"}, names())
    run("scancel", number)
    until("the epilog has run", lambda: not names())

    # Half of the changes: the directory is there, and the record is not.
    (work / "kill").write_text(str(changes - 2))
    code, batch, error = job("sbatch", "--parsable", "--requeue", f"--output={OUT}/killed", "--gres=shard:1", script)
    batch = batch.strip()
    until("slurmd has drained the node", lambda: state() in ("drained", "draining"))
    show = lambda: run("scontrol", "show", "job", batch)[1]
    until("the job waits again", lambda: "JobState=PENDING" in show())
    why = run("sinfo", "--noheader", "--list-reasons", "--format=%E")[1].strip()
    check("slurmd has requeued the job and says why the node is drained", "Restarts=1" in show() and "Prolog error" in why, show(), why)
    check("the job's program has not run", not (OUT / "killed").exists() or "4096" not in (OUT / "killed").read_text())
    (work / "kill").unlink()
    run("scontrol", "update", f"nodename={NODE}", "state=resume")
    check("the next job has its share", share_of("--gres=shard:1") == "4096")
    # Slurm starts a requeued job again after two minutes.
    run("scancel", batch)
    until("the epilogs have run", lambda: not names())


def arrays():
    print("the tasks of a job array")
    script = work / "array"
    script.write_text(f"""#!/bin/sh
(echo total; echo "alloc $(($1 - 1000))"; echo alloc 1500; until test -e {OUT}/go; do sleep 0.1; done) | {work}/client
""")
    script.chmod(0o755)
    # A task of GPU 0 has 2 of 4 shards, one of GPU 1 has 2 of 8.
    wrap = f"case $SLURM_JOB_GPUS in 0) exec {script} 8192 ;; *) exec {script} 4096 ;; esac"
    code, number, error = job("sbatch", "--parsable", "--array=0-3", "--job-name=sweep", f"--output={OUT}/array-%a", "--gres=shard:2", f"--wrap={wrap}")
    check("an array of four tasks is submitted", code == 0, error)
    number = number.strip()
    said = lambda: [(OUT / f"array-{task}").read_text().split() if (OUT / f"array-{task}").exists() else [] for task in range(4)]
    until("the four tasks have tried to allocate", lambda: all(len(one) >= 4 or "vgpu:" in one for one in said()))
    check("each is held to its own 2 shards", all(one[2:] == ["ok", "2"] and one[1] in ("8192", "4096") for one in said()), said())
    board = containers()
    check("the four are on the board by the names that squeue shows", sorted(board) == [f"slurm-{number}_{task}" for task in range(4)], sorted(board))
    check("vgpu top has the job's name and user", all(one["workload"] == {"kind": "slurm", "name": "sweep", "team": "nobody"} for one in board.values()), board)
    code, out, error = run(VGPU, "top", env=SIMULATED)
    check("so has its table", f"slurm-{number}_3 (nobody)" in out, out, error)
    sums = {}
    for one in board.values():
        for device in one["devices"]:
            memory, time = sums.get(device["uuid"], (0, 0))
            sums[device["uuid"]] = (memory + device["limit_bytes"], time + device["cap_percent"])
    check("together they have no more than the GPUs", all(memory <= 16 * GIB and time <= 100 for memory, time in sums.values()), sums)
    monitor = subprocess.Popen([LIB / "vgpu-monitor", "--metrics-addr", "127.0.0.1:31993"], env={**CLEAN, **SIMULATED},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until("the exporter answers", metrics)
    text = metrics()
    check("the exporter has each task", all(f'container="slurm-{number}_{task}"' in text for task in range(4)), text)
    wanted = ('team="nobody"', 'workload_type="slurm"', 'workload="sweep"')
    check("the exporter sums up what the user's job has used", any(
        line.startswith("vgpu_workload_") and all(part in line for part in wanted) for line in text.splitlines()), text)
    monitor.terminate()
    monitor.wait(60)
    (OUT / "go").touch()
    until("the epilogs have removed the array", lambda: not names())
    until("the node is free again", lambda: state() == "idle")


def ends():
    print("ends that are not orderly")
    client = Client("--gres=shard:1", user="nobody")
    name = next(iter(containers()))
    number = name.removeprefix("slurm-")
    check("the job allocates", client.ask("alloc 3000") == "ok")
    os.kill(int((SPOOL / "slurmd.pid").read_text()), 9)
    start_slurmd()
    check("a job outlives slurmd with its limit", client.ask("alloc 1200") == "2" and name in containers())
    again = {"SLURM_JOB_ID": number, "SLURMD_NODENAME": NODE, "SLURM_JOB_GPUS": "0"}
    check_code(*run(work / "prolog", env=again)[::2])
    board = containers()[name]
    check("a prolog that is repeated keeps a running job's account", board["devices"][0]["used_bytes"] > 2 * GIB, board)
    run("scancel", "--signal=KILL", number)
    client.process.wait(60)
    until("the epilog of a killed job has run", lambda: not names())
    check("a killed job leaves nothing", containers() == {})
    environment = {"SLURM_JOB_ID": "4000", "SLURMD_NODENAME": NODE}
    prolog, epilog = (str(work / one) for one in ("prolog", "epilog"))
    for _ in range(2):
        check_code(*run(prolog, env=environment)[::2])
    check("a prolog may be repeated", names() == {".slurm/4000"}, names())
    for _ in range(2):
        check_code(*run(epilog, env=environment)[::2])
    check("an epilog may be repeated", names() == set(), names())
    code, _, error = run(VGPU, "slurm", "task", "--job=1")
    check("a task without a prolog does not start", code == 1 and "has not run on this node" in error, error)
    code, _, error = run(VGPU, "slurm", "prolog", "--shards=4", env={**SIMULATED, **environment, "SLURM_JOB_GPUS": "0"})
    check("a prolog that cannot ask slurmctld fails", code == 1 and "4000" in error, error)


start()
two_jobs_share_a_gpu()
refusals()
hostile()
other_shapes()
steps()
arrays()
ends()
killed_prologs()
print(f"{checks} passed")
