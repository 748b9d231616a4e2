"""Which steps of scripts/test need not run again, because nothing that they read has changed since they last passed in
this target folder.

  changed.py plan PLAN STEP...            writes what each step reads, as hashes, and prints the steps that are unchanged:
                                          "STEP TIME", one to a line
  changed.py passed PLAN STEP LOG         remembers that the step passed, unless a file changed while it ran
  changed.py program PLAN PROGRAM ARG...  cargo's runner: runs one test program, or says that it is unchanged

What a step reads is decided by functions of values (files, packages, texts); changed_test.py has their tests. A step that
the table STEPS does not name reads every file. A missing entry costs time; a wrong one costs a test, so an entry is made
only where the scripts of the step show what they read.
"""
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import re
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What every step reads: how it is started, and how everything is built. Every Cargo.toml belongs to it, too, because the
# features of a dependency are chosen by all packages that are built together.
HARNESS = (
    "scripts/test", "scripts/setup", "scripts/lib/common", "scripts/lib/changed.py", "scripts/lib/requirements.txt",
    "Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "clippy.toml", ".cargo/",
)
# Folders of the repository that are no package, as a text names them.
FOLDERS = ("charts", "docs", "examples", "images", "include", "scripts", "tests/vectors")
DRIVER = ("cuda-sim", "cuda-sim-libcuda", "cuda-sim-libnvidia-ml")


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step reads beside HARNESS: the programs that it runs, the packages whose tests it runs, and further places.

    A step that runs the scripts among its places reads the places that they name, too.
    """

    programs: tuple = ()
    tested: tuple = ()
    places: tuple = ()
    runs_scripts: bool = True


# What clusters are made of, with containers on a node or without.
IN_CLUSTERS = ("scripts/cluster", "scripts/images", "charts/", "images/", "examples/", "tests/cluster/")
# Nodes run what the chart installs, and what they ask of Kubernetes.
NODE = Step(
    programs=("vgpu-monitor", "scheduler", "webhook", "vgpu", "vgpu-core", *DRIVER), tested=("cluster-tests",),
    places=IN_CLUSTERS,
)

STEPS = {
    **{name: NODE for name in ("node", "node16", "node17", "oldest", "newest")},
    # Its nodes have no containers, and so no program under the library; the doctor asks the simulated NVML.
    "cluster": Step(
        programs=("vgpu-monitor", "scheduler", "webhook", "vgpu", "cuda-sim-libnvidia-ml"), tested=("cluster-tests",),
        places=IN_CLUSTERS,
    ),
    "shell": Step(places=("scripts/", ".ci/"), runs_scripts=False),
    "deny": Step(places=("deny.toml",)),
    "loom": Step(tested=("vgpu-abi",)),
    "dist": Step(programs=("vgpu-core", "xtask"), tested=("tests",)),
    "contrary": Step(tested=("tests",)),
    "shares": Step(tested=("tests",)),
    "prometheus": Step(
        programs=("vgpu", "vgpu-monitor", "vgpu-core", *DRIVER),
        places=("scripts/lib/prometheus-check", "scripts/lib/prometheus_check.py"),
    ),
    "dashboards": Step(
        programs=("vgpu", "vgpu-monitor", "scheduler", "webhook", "vgpu-core", *DRIVER),
        places=("scripts/lib/dashboards-check", "scripts/lib/dashboards_check.py", "scripts/lib/dashboards.py", "charts/"),
    ),
    "clients": Step(programs=("vgpu", "vgpu-core", *DRIVER), places=("scripts/lib/clients", "tests/clients/")),
    "slurm": Step(
        programs=("vgpu", "vgpu-core", "vgpu-monitor", "slurm-spank", *DRIVER),
        places=("scripts/lib/slurm-check", "scripts/lib/slurm_check.py"),
    ),
    "engines": Step(
        programs=("vgpu", "vgpu-core", "vgpu-monitor", *DRIVER),
        places=("scripts/lib/engines-check", "scripts/lib/engines-inside", "scripts/lib/engines_check.py", "examples/"),
    ),
    "chart": Step(
        programs=("vgpu-monitor", "scheduler", "webhook"),
        places=("scripts/lib/chart-check", "scripts/lib/chart_check.py", "scripts/lib/chart_rules.py", "scripts/lib/images_check.py",
                "scripts/cluster", "scripts/images", "charts/", "images/", "examples/", "tests/cluster/"),
    ),
    "page": Step(programs=("vgpu",), tested=("scheduler", "pages"), places=("scripts/lib/page-check", "scripts/lib/pages/")),
    "demo": Step(
        programs=("vgpu", "vgpu-monitor", "vgpu-core", *DRIVER),
        places=("scripts/demo", "scripts/lib/demo/", "tests/preload/", "include/"),
    ),
}

# A node in Debian's Linux: everything but pages for people.
WITHOUT_PAGES = frozenset(("groups2",))
PAGES = ("docs/", "README.md", "CONTRIBUTING.md")
# Steps that use nothing of what the step `build` makes.
NEED_NO_BUILD = frozenset(("format", "shell", "clippy", "spelling", "deny", "loom", "doc"))
# Tests that ask cargo or git about the whole repository.
READ_EVERYTHING = frozenset(("xtask", "tests/crate_graph"))
# The step whose test programs are judged one by one.
BY_PROGRAM = "test"
LEFT_OUT = "unchanged since it passed at"


@dataclasses.dataclass(frozen=True)
class Package:
    """A package of the workspace: its folder, and the packages of the workspace that it is built from."""

    folder: str
    needs: frozenset
    tests_need: frozenset


class Repository:
    """The files with their digests, the packages, and how to read a text. Nothing is read but by `text`."""

    def __init__(self, digests, packages, text):
        self.digests = digests
        self.packages = packages
        self.text = text
        self._named = {}

    def owner(self, file):
        """The package in whose folder a file lies: the innermost one."""
        owners = [name for name, package in self.packages.items() if file.startswith(package.folder + "/")]
        return max(owners, key=lambda name: len(self.packages[name].folder), default=None)

    def below(self, place):
        """The files that a place names: a file, a folder, or the beginning of names in a folder."""
        return {file for file in self.digests if file.startswith(place)}

    def named(self, file):
        """The places outside of its own package that a file names."""
        if file not in self._named:
            self._named[file] = places_in(file, self.text(file), [package.folder for package in self.packages.values()])
        return self._named[file]


def closure(packages, programs, tested):
    """The packages that these programs, and the tests of these packages, are built from."""
    found, wanted = set(), [*programs, *tested]
    for name in tested:
        wanted.extend(packages[name].tests_need)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted.extend(packages[name].needs)
    return found


def is_of_tests(file, package):
    """Whether a program is built without this file of its package. tests_check.py makes sure that src/**/tests.rs is."""
    return re.match(r"/(tests|benches)/|/src/(.*/)?tests(\.rs|/)", file.removeprefix(package.folder)) is not None


def files_of_packages(repository, programs, tested):
    """The sources of these programs and tests, and the files elsewhere that the sources name."""
    built = closure(repository.packages, programs, tested)
    found = set()
    for file in repository.digests:
        owner = repository.owner(file)
        # The recordings lie in the folder of a package, and are no part of it.
        if owner in built and not file.startswith("tests/vectors/"):
            if owner in tested or not is_of_tests(file, repository.packages[owner]):
                found.add(file)
    wanted = [file for file in found if file.endswith(".rs")]
    while wanted:
        for place in repository.named(wanted.pop()):
            more = repository.below(place) - found
            found |= more
            # A file of another package that is built with this one names places, too.
            wanted.extend(file for file in more if file.endswith(".rs"))
    return found


def files_in_places(repository, places, runs_scripts):
    """The files in these places, and all that the scripts among them name, directly or by other scripts."""
    found, wanted = set(), [file for place in places for file in repository.below(place)]
    while wanted:
        file = wanted.pop()
        if file in found:
            continue
        found.add(file)
        if runs_scripts and is_script(file) and not file.startswith(HARNESS):
            for place in repository.named(file):
                wanted.extend(repository.below(place))
    return found


def is_script(file):
    """Whether a file is read for the places that it names."""
    return file.startswith("scripts/") or file.endswith((".py", ".sh"))


def places_in(file, text, folders):
    """The places that a text names by a path from the root of the repository, or by the name of a folder in quotes."""
    if file.endswith(".rs"):
        text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    names = "|".join(re.escape(name) for name in sorted({*folders, *FOLDERS}, key=len, reverse=True))
    # A name that ends a sentence has no full stop.
    found = {place.rstrip(".") for place in re.findall(rf"(?<![\w.-])(?:{names})/[\w./@-]*", text)}
    found.update(name + "/" for name in re.findall(r"[\"'](?:\.\./)*([\w/]+?)/?[\"']", text) if name in FOLDERS)
    if file.endswith(".py"):
        folder = file.rpartition("/")[0]
        found.update(f"{folder}/{module}.py" for module in re.findall(r"^(?:from|import) (\w+)", text, re.M))
    return found


def harness(repository):
    """The files that every step reads."""
    manifests = {package.folder + "/Cargo.toml" for package in repository.packages.values()}
    return {file for file in repository.digests if file.startswith(HARNESS) or file in manifests}


def files_of_step(repository, name):
    """The files that a step reads."""
    step = STEPS.get(name)
    if step is None:
        left = PAGES if name in WITHOUT_PAGES else ()
        return {file for file in repository.digests if not file.startswith(left)}
    found = harness(repository) | files_of_packages(repository, step.programs, step.tested)
    return found | files_in_places(repository, step.places, step.runs_scripts)


def files_of_tests(repository, package, program):
    """The files that a test program of a package reads."""
    if {package, f"{package}/{program}"} & READ_EVERYTHING or package not in repository.packages:
        return set(repository.digests)
    return harness(repository) | files_of_packages(repository, (), (package,))


def fingerprint(repository, files, surroundings):
    """One hash over names and contents of files, and over what else counts."""
    digest = hashlib.sha256("\0".join(surroundings).encode())
    for file in sorted(files):
        digest.update(f"\0{file}\0{repository.digests[file]}".encode())
    return digest.hexdigest()


def left_out(chosen, unchanged):
    """Of the chosen steps those that need not run. The build runs for the steps that use it."""
    run = [name for name in chosen if name not in unchanged and name != "build"]
    needs_build = any(name not in NEED_NO_BUILD for name in run)
    return [name for name in chosen if name in unchanged and not (name == "build" and needs_build)]


def skips(text):
    """Whether an output tells of something that could not run here. What it waits for is no file of the repository."""
    return re.search(r"^(?:\[[ \d:]+\] )?\s*skipped[ :]", text, re.M) is not None


# What follows acts: it reads the repository and the machine, and writes records.


def digest_of(file):
    try:
        if file.is_symlink():
            return "link " + os.readlink(file)
        mode = "x" if os.access(file, os.X_OK) else "-"
        return mode + hashlib.sha256(file.read_bytes()).hexdigest()
    except IsADirectoryError:
        return "folder"


def listed():
    """The names of tracked files, and of those that git does not know and does not ignore."""
    found = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in found.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def repository():
    """The repository as it lies."""
    names = listed()
    asked = subprocess.run(["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"], cwd=ROOT, check=True,
                           capture_output=True, text=True)
    packages = {}
    for package in json.loads(asked.stdout)["packages"]:
        ours = [(need["name"], need["kind"]) for need in package["dependencies"] if need.get("path")]
        packages[package["name"]] = Package(
            folder=str(pathlib.Path(package["manifest_path"]).parent.relative_to(ROOT)),
            needs=frozenset(name for name, kind in ours if kind != "dev"),
            tests_need=frozenset(name for name, kind in ours if kind == "dev"),
        )
    return Repository(
        {name: digest_of(ROOT / name) for name in names},
        packages,
        lambda name: (ROOT / name).read_text(errors="replace") if (ROOT / name).is_file() else "",
    )


def surroundings():
    """What a step depends on beside the repository: compiler, kernel, Debian's packages, settings."""
    compiler = subprocess.run(["rustc", "-vV"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    debian = pathlib.Path("/var/lib/dpkg/status")
    system = os.uname()
    settings = re.compile(r"VGPU_(?!BUILT$)|CUDA_|RUSTFLAGS$|RUST_|PROPTEST_|CARGO_(BUILD|PROFILE|ENCODED)_")
    return [
        compiler, sys.version, system.release, system.machine,
        hashlib.sha256(debian.read_bytes()).hexdigest() if debian.exists() else "no Debian",
        *sorted(f"{name}={value}" for name, value in os.environ.items() if settings.match(name)),
    ]


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def record_of(unit):
    return target() / "test-passed" / unit.replace("/", "__")


def passed_at(unit, wanted):
    """When this unit passed with this fingerprint, if it is the last that it passed with."""
    try:
        kept, at = record_of(unit).read_text().split(" ", 1)
    except (OSError, ValueError):
        return None
    return at if kept == wanted else None


def remember(unit, wanted):
    record = record_of(unit)
    record.parent.mkdir(parents=True, exist_ok=True)
    fresh = record.with_name(f"{record.name}.{os.getpid()}")
    fresh.write_text(f"{wanted} {datetime.datetime.now():%Y-%m-%d %H:%M}")
    fresh.rename(record)


def stamp(name):
    """What changes when a file is written: the cheap half of its digest."""
    try:
        found = (ROOT / name).lstat()
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_mode]


def unchanged_since(planned, files_of, wanted):
    """Whether the files that something reads are what they were when the plan was made. Mostly no file at all has been
    written since: then hashing them again, a second of processor time, would say the same.
    """
    if all(stamp(name) == kept for name, kept in planned["stamps"].items()):
        return True
    here = repository()
    return fingerprint(here, files_of(here), planned["around"]) == wanted


def plan(file, chosen):
    # Before the digests: what is written between the two counts as written later.
    stamps = {name: stamp(name) for name in listed()}
    here, around = repository(), surroundings()
    steps = {name: fingerprint(here, files_of_step(here, name), around) for name in chosen}
    tests = {name: fingerprint(here, files_of_tests(here, name, ""), around) for name in here.packages}
    everything = fingerprint(here, set(here.digests), around)
    planned = {"steps": steps, "tests": tests, "everything": everything, "around": around, "stamps": stamps}
    pathlib.Path(file).write_text(json.dumps(planned))
    times = {name: passed_at(name, wanted) for name, wanted in steps.items()}
    for name in left_out(chosen, {name for name, at in times.items() if at}):
        print(name, times[name])


def passed(file, name, log):
    planned = json.loads(pathlib.Path(file).read_text())
    output = pathlib.Path(log).read_text(errors="replace")
    if skips(output):
        return
    if unchanged_since(planned, lambda here: files_of_step(here, name), planned["steps"][name]):
        remember(name, planned["steps"][name])
    # Where programs were left out, each one that ran has its own record.
    if name == BY_PROGRAM and LEFT_OUT not in output:
        here, around = repository(), planned["around"]
        for package, wanted in planned["tests"].items():
            if fingerprint(here, files_of_tests(here, package, ""), around) == wanted:
                remember(f"test-{package}", wanted)


def output_size():
    """How long the log is that this output goes to, if it is a file."""
    return os.lseek(1, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(1).st_mode) else None


def output_after(began):
    with open("/proc/self/fd/1", "rb") as log:
        log.seek(began)
        return log.read().decode(errors="replace")


def program(file, command):
    """Runs a test program, in the folder and with the variables that cargo has set."""
    planned = json.loads(pathlib.Path(file).read_text())
    package, name = os.environ.get("CARGO_PKG_NAME", ""), pathlib.Path(command[0]).name.rpartition("-")[0]
    alone = f"{package}/{name}" in READ_EVERYTHING
    wanted = planned["everything"] if alone else planned["tests"].get(package)
    # A part of a program's tests says nothing of the rest.
    is_test = name != "" and wanted is not None and command[1:] == ["--show-output"]
    unit = f"test-{package}-{name}"
    if is_test:
        at = passed_at(unit, wanted) or (not alone and passed_at(f"test-{package}", wanted))
        if at:
            print(f"{LEFT_OUT} {at}: {package}, {name}", flush=True)
            return 0
    began = output_size()
    code = subprocess.call(command)
    if code == 0 and is_test and began is not None and not skips(output_after(began)):
        if unchanged_since(planned, lambda here: files_of_tests(here, package, name), wanted):
            remember(unit, wanted)
    # A shell's number for a program that a signal ended.
    return code if code >= 0 else 128 - code


def main(arguments):
    match arguments:
        case ["plan", file, *chosen]:
            plan(file, chosen)
        case ["passed", file, name, log]:
            passed(file, name, log)
        case ["program", file, *command] if command:
            return program(file, command)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
