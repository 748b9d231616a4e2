"""The images half of chart-check: what mkimage packs is whole, the same twice, and what buildah makes runs too.

Packs programs of this machine, needs no built product and no network; what it makes lies in the working folder.
"""

import base64
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

MKIMAGE = "images/mkimage"
MKINDEX = "images/mkindex"
WORK = pathlib.Path(sys.argv[1])


class Wrong(Exception):
    """A check that failed, in a sentence."""


def need(truth, text):
    if not truth:
        raise Wrong(text)


def run(*command, ok=True, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)
    need(not ok or done.returncode == 0, f"{' '.join(map(str, command))[:200]}: {done.stderr.strip()[-800:]}")
    return done


class File(tarfile.TarInfo):
    """An entry of a layer, with what is in it."""

    __slots__ = ("content",)


def unpack(file):
    """(configuration, {path: File}, its entry in the index) of an OCI archive; layers later win, as they do."""
    with tarfile.open(file) as tar:
        read = lambda digest: tar.extractfile("blobs/sha256/" + digest.removeprefix("sha256:")).read()
        index = json.load(tar.extractfile("index.json"))
        [entry] = index["manifests"]
        manifest = json.loads(read(entry["digest"]))
        config = json.loads(read(manifest["config"]["digest"]))
        files = {}
        for layer, diff in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            blob = read(layer["digest"])
            need("sha256:" + hashlib.sha256(blob).hexdigest() == layer["digest"], f"{file}: a layer is not what its name says")
            with tarfile.open(fileobj=io.BytesIO(blob), mode="r:*", tarinfo=File) as inner:
                for info in inner:
                    info.content = inner.extractfile(info).read() if info.isreg() else b""
                    files["/" + info.name.strip("/")] = info
        return config, files, entry


def programs():
    folder = WORK / "tree"
    (folder / "bin").mkdir(parents=True)
    (folder / "cache").mkdir()
    (folder / "cache/unwanted").write_text("x")
    (folder / "a.txt").write_text("hello\n")
    (folder / "a.txt").chmod(0o640)
    (folder / "link").symlink_to("a.txt")
    shutil.copy2(shutil.which("env"), folder / "bin/env")
    return ["--bin", f"{shutil.which('sh')}:/usr/bin/sh", "--tree", f"{folder}:/opt/tree", "--exclude", "cache", "--link", "/usr/bin/dash=sh",
            "--dir", "/var/lib/thing:0700", "--text", "/etc/motd=one\\ntwo", "--entry", "/usr/bin/sh", "--cmd=-c", "--env", "A=b=c", "--user", "65534",
            "--stop-signal", "SIGKILL"]


def an_image_is_whole_and_the_same_twice():
    arguments = programs()
    for name in ("one", "two"):
        run(MKIMAGE, "localhost/trial:1", WORK / f"{name}.tar", "--strip", *arguments)
    need((WORK / "one.tar").read_bytes() == (WORK / "two.tar").read_bytes(), "two runs give two images")
    config, files, entry = unpack(WORK / "one.tar")
    need(entry["annotations"]["io.containerd.image.name"] == "localhost/trial:1", f"{entry}")
    need(config["config"]["Entrypoint"] == ["/usr/bin/sh"] and config["config"]["User"] == "65534", f"{config['config']}")
    need("A=b=c" in config["config"]["Env"], f"{config['config']['Env']}")
    need(config["config"]["StopSignal"] == "SIGKILL", f"{config['config']}")
    need(files["/opt/tree/a.txt"].mode == 0o640 and files["/opt/tree/a.txt"].content == b"hello\n", "a file's mode or content")
    need(files["/opt/tree/link"].linkname == "a.txt" and files["/usr/bin/dash"].linkname == "sh", "links")
    need("/opt/tree/cache/unwanted" not in files, "--exclude let it in")
    need(files["/var/lib/thing"].mode == 0o700 and files["/etc/motd"].content == b"one\ntwo", "folders and texts")
    need(all(info.uid == 0 and info.mtime == 0 for info in files.values()), "owners and times of this machine")
    # Everything that the programs load is there, the loader too, and lies where the loader looks.
    names = {os.path.basename(path) for path in files}
    for program in (shutil.which("sh"), WORK / "tree/bin/env"):
        for line in run("ldd", program).stdout.splitlines():
            name = line.split()[0]
            need(os.path.basename(name) in names or "vdso" in name, f"{program} loads {name}, which is not in the image")
    need(files["/lib64"].linkname == "usr/lib64" and any("ld-linux" in path for path in files), "the loader")


def an_image_can_stand_on_another():
    run(MKIMAGE, "localhost/base:1", WORK / "base.tar", "--libraries-of", shutil.which("sh"))
    run(MKIMAGE, "localhost/top:1", WORK / "top.tar", "--gzip", "--base", WORK / "base.tar", "--text", "/etc/top=x")
    config, files, _ = unpack(WORK / "top.tar")
    need(len(config["rootfs"]["diff_ids"]) == 2 and "/etc/top" in files, "layers")
    need(not any(path.endswith("/sh") for path in files), "--libraries-of took the program, too")
    need("StopSignal" not in config["config"], "a stop signal that nothing asked for")


def an_index_has_each_processors_image_as_it_was():
    """Two small images, of processors that need not be this machine's: all that says so is the loader in the sysroot."""
    folder = WORK / "index"

    def image(file, loader, number, name="localhost/both:1"):
        sysroot = folder / loader
        (sysroot / "lib").mkdir(parents=True, exist_ok=True)
        # The head of an ELF file; the number of the processor is at byte 18.
        (sysroot / "lib" / loader).write_bytes(b"\x7fELF".ljust(18, b"\0") + number.to_bytes(2, "little") + bytes(44))
        run(MKIMAGE, name, folder / file, "--sysroot", sysroot, "--text", f"/etc/loader={loader}")
        return folder / file

    intel = image("intel.tar", "ld-linux-x86-64.so.2", 62)
    arm = image("arm.tar", "ld-linux-aarch64.so.1", 183)
    run(MKINDEX, folder / "both.tar", intel, arm)
    run(MKINDEX, folder / "turned.tar", arm, intel)
    need((folder / "both.tar").read_bytes() == (folder / "turned.tar").read_bytes(), "the order of the images changes the index")

    with tarfile.open(folder / "both.tar") as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar if member.name.startswith("blobs/")}
        [top] = json.load(tar.extractfile("index.json"))["manifests"]
    for name, blob in blobs.items():
        need(name == "blobs/sha256/" + hashlib.sha256(blob).hexdigest(), f"{name} is not what its name says")
    need(top["annotations"]["io.containerd.image.name"] == "localhost/both:1", f"{top}")
    inner = blobs["blobs/sha256/" + top["digest"].removeprefix("sha256:")]
    need(len(inner) == top["size"] and "platform" not in top, f"{top}")
    entries = {(entry["platform"]["os"], entry["platform"]["architecture"]): entry for entry in json.loads(inner)["manifests"]}
    need(entries.keys() == {("linux", "amd64"), ("linux", "arm64")}, f"{entries.keys()}")
    for file, loader, processor in ((intel, "ld-linux-x86-64.so.2", "amd64"), (arm, "ld-linux-aarch64.so.1", "arm64")):
        config, files, alone = unpack(file)
        need(config["architecture"] == processor and files["/etc/loader"].content == loader.encode(), f"{file}: {config}")
        entry = entries["linux", processor]
        need(entry["digest"] == alone["digest"] and entry["size"] == alone["size"], f"{processor}: {entry}, alone {alone}")
        with tarfile.open(file) as tar:
            for member in tar:
                if member.name.startswith("blobs/"):
                    need(blobs[member.name] == tar.extractfile(member).read(), f"{processor}: {member.name} differs")

    other = image("other.tar", "ld-linux-aarch64.so.1", 183, "localhost/other:1")
    with tarfile.open(arm) as tar, tarfile.open(folder / "nameless.tar", "w") as out:
        index = json.load(tar.extractfile("index.json"))
        del index["manifests"][0]["annotations"]
        content = json.dumps(index).encode()
        info = tarfile.TarInfo("index.json")
        info.size = len(content)
        out.addfile(info, io.BytesIO(content))
    (folder / "text.tar").write_text("no tar")
    for inputs, word in (
        ([arm, arm], "of the same processor: arm64, arm64"),
        ([intel, other], "different names: localhost/both:1, localhost/other:1"),
        ([intel, folder / "both.tar"], "one image with a platform is accepted"),
        ([intel, folder / "none.tar"], "no such file"),
        ([intel, folder / "text.tar"], "is no tar"),
        ([intel, folder / "nameless.tar"], "has no name"),
    ):
        done = run(MKINDEX, folder / "x.tar", *inputs, ok=False)
        need(done.returncode != 0 and word in done.stderr, f"{inputs}: {done.stderr}")
        need(not list(folder.glob("x.tar*")), f"{inputs}: half an index is left")


def what_cannot_be_packed_is_said():
    (WORK / "pipe").mkdir()
    os.mkfifo(WORK / "pipe/fifo")
    for arguments, word in (
        (["trial", WORK / "x.tar"], "no tag"),
        (["localhost/x:1", WORK / "x.tar", "--bin", "/no/such"], "was it built"),
        (["localhost/x:1", WORK / "x.tar", "--tree", "/no/such"], "no such folder"),
        (["localhost/x:1", WORK / "x.tar", "--tree", f"{WORK / 'pipe'}:/p"], "neither file, folder nor link"),
        (["localhost/x:1", WORK / "x.tar", "--text", "/etc/x"], "NAME=VALUE"),
        (["localhost/x:1", WORK / "x.tar", "--dir", "relative"], "no absolute path"),
        (["localhost/x:1", WORK / "x.tar", "--base", "/no/such"], "no such file"),
    ):
        done = run(MKIMAGE, *arguments, ok=False)
        need(done.returncode != 0 and word in done.stderr, f"{arguments}: {done.stderr}")
        need(not (WORK / "x.tar").exists(), f"{arguments}: half an image is left")


def buildah_makes_the_same_images():
    """The Containerfiles, on the base that mkimage makes, with small programs in the product's places."""
    target = WORK / "target"
    (target / "debug").mkdir(parents=True)
    for program in ("vgpu-monitor", "vgpu-scheduler", "vgpu-webhook", "vgpu"):
        shutil.copy2(shutil.which("env"), target / "debug" / program)
    library = next(line.split()[2] for line in run("ldd", shutil.which("env")).stdout.splitlines() if "libc.so" in line)
    both = {}
    for way in ("mkimage", "buildah"):
        out = WORK / way
        run("scripts/images", "build", "--profile", "debug", "--no-cargo", "--library", library, "--tag", "1", "--with", way, out,
            env={**os.environ, "CARGO_TARGET_DIR": str(target)})
        both[way] = {file.name: unpack(file) for file in sorted(out.iterdir())}
    need(both["mkimage"].keys() == both["buildah"].keys(), f"{both.keys()}")
    for name, (config, files, _) in both["mkimage"].items():
        other, theirs, _ = both["buildah"][name]
        for key in ("Entrypoint", "User"):
            need((config["config"].get(key) or None) == (other["config"].get(key) or None), f"{name}: {key} differs: {other['config']}")
        variables = lambda config: set(config["config"]["Env"])
        need(variables(config) == variables(other), f"{name}: {variables(config) ^ variables(other)}")
        ours = {path for path, info in files.items() if info.isreg() and path.startswith("/usr")}
        missing = ours - theirs.keys()
        need(not missing, f"{name} of buildah lacks {missing}")
        for path in ours:
            need(files[path].content == theirs[path].content, f"{name}: {path} differs")
            mode = theirs[path].mode & 0o7777
            need(files[path].mode == mode, f"{name}: {path} has mode {mode:o}, not {files[path].mode:o}")


def what_ships_is_signed_as_cosign_verifies_it():
    """Keys, files, an archive and an image; openssl alone verifies what scripts/sign says it has signed."""
    sign = "scripts/sign"
    folder = WORK / "signed"
    folder.mkdir()
    run(sign, "key", folder / "a")
    run(sign, "key", folder / "b")
    need((folder / "a.key").stat().st_mode & 0o777 == 0o600, "the secret key may be read by others")
    text = run("openssl", "pkey", "-pubin", "-in", folder / "a.pub", "-noout", "-text").stdout
    need("prime256v1" in text, f"not P-256: {text}")
    need("not replaced" in run(sign, "key", folder / "a", ok=False).stderr, "a key was replaced")

    def openssl_takes(content, signature):
        raw = folder / "raw.sig"
        raw.write_bytes(base64.b64decode(signature, validate=True))
        (folder / "raw").write_bytes(content)
        return run("openssl", "dgst", "-sha256", "-verify", folder / "a.pub", "-signature", raw, folder / "raw", ok=False).returncode == 0

    # The archive of what ships, with the list of its parts.
    dist = folder / "dist"
    (dist / "bin").mkdir(parents=True)
    shutil.copy2(shutil.which("env"), dist / "bin/vgpu")
    about = {"component": {"version": "1.2.3", "properties": [{"name": "vgpu:processor", "value": "x86_64"}]}}
    (dist / "sbom.cdx.json").write_text(json.dumps({"metadata": about}))
    for out in ("one", "two"):
        run(sign, "dist", "--key", folder / "a.key", dist, folder / out)
    archive = folder / "one/vgpu-1.2.3-x86_64.tar.gz"
    need(archive.read_bytes() == (folder / "two" / archive.name).read_bytes(), "two runs give two archives")
    with tarfile.open(archive) as tar:
        modes = {info.name: info.mode for info in tar}
    expected = {"bin/vgpu": 0o755, "sbom.cdx.json": 0o644, "LICENSE": 0o644}
    need(modes == {f"vgpu-1.2.3-x86_64/{name}": mode for name, mode in expected.items()}, f"{modes}")
    for file in (archive, folder / "one/vgpu-1.2.3-x86_64.sbom.cdx.json"):
        need(openssl_takes(file.read_bytes(), pathlib.Path(f"{file}.sig").read_text()), f"openssl refuses the signature of {file}")
        run(sign, "verify", "--pub", folder / "a.pub", file)
        need("is not this key's" in run(sign, "verify", "--pub", folder / "b.pub", file, ok=False).stdout, "another key verifies it")
    with open(archive, "ab") as out:
        out.write(b"x")
    need(run(sign, "verify", "--pub", folder / "a.pub", archive, ok=False).returncode == 1, "a changed archive is verified")
    for text in ("no base64", base64.b64encode(bytes(100_000)).decode()):
        pathlib.Path(f"{archive}.sig").write_text(text)
        need(run(sign, "verify", "--pub", folder / "a.pub", archive, ok=False).returncode == 1, "no signature is one")

    # An image: cosign's payload, in an image of its own.
    for name in ("image", "other"):
        run(MKIMAGE, f"localhost/{name}:1", folder / f"{name}.tar", "--text", f"/etc/name={name}")
        run(sign, "image", "--key", folder / "a.key", "--repository", "registry.example.com/gpu/image", folder / f"{name}.tar")
    _, _, image = unpack(folder / "image.tar")
    with tarfile.open(folder / "image.sig.tar") as tar:
        blob = lambda digest: tar.extractfile("blobs/sha256/" + digest.removeprefix("sha256:")).read()
        [entry] = json.load(tar.extractfile("index.json"))["manifests"]
        manifest = json.loads(blob(entry["digest"]))
        [layer] = manifest["layers"]
        payload, config = blob(layer["digest"]), json.loads(blob(manifest["config"]["digest"]))
    tag = image["digest"].replace(":", "-") + ".sig"
    need(entry["annotations"]["org.opencontainers.image.ref.name"] == f"registry.example.com/gpu/image:{tag}", f"{entry}")
    need(layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json", f"{layer}")
    need(config["rootfs"]["diff_ids"] == [layer["digest"]], f"{config}")
    said = json.loads(payload)["critical"]
    need(said["image"]["docker-manifest-digest"] == image["digest"], f"{said}")
    need(said["type"] == "cosign container image signature" and said["identity"]["docker-reference"] == "registry.example.com/gpu/image", f"{said}")
    need(openssl_takes(payload, layer["annotations"]["dev.cosignproject.cosign/signature"]), "openssl refuses the image's signature")
    run(sign, "verify", "--pub", folder / "a.pub", folder / "image.tar")
    shutil.copy2(folder / "other.sig.tar", folder / "image.sig.tar")
    need("is of the image" in run(sign, "verify", "--pub", folder / "a.pub", folder / "image.tar", ok=False).stdout, "another image's signature is taken")

    # Other kinds of keys are refused before anything is signed.
    run("openssl", "genpkey", "-algorithm", "ED25519", "-out", folder / "c.key")
    done = run(sign, "file", "--key", folder / "c.key", folder / "a.pub", ok=False)
    need(done.returncode != 0 and "P-256" in done.stderr and not (folder / "a.pub.sig").exists(), f"{done.stderr}")


checks = [
    an_image_is_whole_and_the_same_twice,
    an_image_can_stand_on_another,
    an_index_has_each_processors_image_as_it_was,
    what_cannot_be_packed_is_said,
    what_ships_is_signed_as_cosign_verifies_it,
]
if not shutil.which("buildah"):
    print("skipped images by buildah: it is not installed (apt-get install buildah)")
elif run("buildah", "--root", WORK / "probe", "--runroot", WORK / "run", "--storage-driver", "vfs", "info", ok=False).returncode != 0:
    print("skipped images by buildah: it cannot run here")
else:
    checks.append(buildah_makes_the_same_images)
failed = 0
for check in checks:
    try:
        check()
        print(f"test {check.__name__.replace('_', ' ')} ... ok")
    except Wrong as wrong:
        failed += 1
        print(f"WRONG {check.__name__.replace('_', ' ')}: {wrong}")
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(failed > 0)
