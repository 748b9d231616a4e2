"""No test is left out silently: each crate with `autotests = false` names every file of its tests/ in tests/main.rs, and
a crate with `doctest = false` has no example in its documentation that would be one. And each file
`tests.rs` below a src/ is compiled for tests alone (`#[cfg(test)]`): `scripts/lib/changed.py` relies on that.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def wrong():
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [pathlib.PurePosixPath(line) for line in tracked.stdout.splitlines()]
    for manifest in (file for file in files if file.name == "Cargo.toml" and (ROOT / file).exists()):
        text, crate = (ROOT / manifest).read_text(), manifest.parent
        if re.search(r"^autotests *= *false", text, re.M):
            main = (ROOT / crate / "tests/main.rs").read_text()
            named = set(re.findall(r"^mod (\w+);", main, re.M))
            for file in files:
                if file.parent == crate / "tests" and file.suffix == ".rs" and file.stem != "main" and (ROOT / file).exists() \
                        and file.stem not in named:
                    yield f"{file} is in no test program: add \"mod {file.stem};\" to {crate}/tests/main.rs"
        if re.search(r"^doctest *= *false", text, re.M):
            for file in files:
                if file.is_relative_to(crate / "src") and file.suffix == ".rs" and (ROOT / file).exists():
                    fences = re.findall(r"^ *//[/!] ?```(.*)$", (ROOT / file).read_text(), re.M)
                    # Every second one ends what the one before began.
                    if any(fence.strip() in ("", "rust", "no_run", "should_panic") for fence in fences[::2]):
                        yield f"{file} has an example that no test runs: {manifest} says \"doctest = false\""
    for file in files:
        if file.suffix == ".rs" and "src" in file.parts and (ROOT / file).exists():
            text = (ROOT / file).read_text()
            for module in re.finditer(r"^(?:pub(?:\([^)]*\))? )?mod tests;", text, re.M):
                above = text[:module.start()].rstrip().rpartition("\n\n")[2]
                if not re.search(r"^#\[cfg\((all\()?test\b", above, re.M):
                    yield f"{file} has a module \"tests\" in a file of its own without #[cfg(test)] right above it: add that, or name it otherwise"


problems = list(wrong())
for line in problems:
    print(f"error: {line}")
sys.exit(1 if problems else 0)
