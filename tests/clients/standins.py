"""Libraries of CUDA that a client is linked to and that no registry has: made here, by name.

    standins.py FOLDER NEW=OLD... -- LIBRARY...

For each library of CUDA 10 that one of LIBRARY is linked to, FOLDER gets a file of that name with the functions
that it wants, in the version that it wants. Every function answers 0 ("success") and does nothing, so a client may
make its handles; what it computes with them is wrong. OLD=FILE names the file of a real library instead:
`libcudart.so.10.1=.../libcudart.so.10.2` hands every function on to that file. No file of the client is changed.
"""

import os
import re
import subprocess
import sys

PARTS = r"lib(cublas|cublasLt|cudart|cufft|curand|cusolver|cusparse|nvrtc)\.so\.10(\.\d)?"


def wanted(libraries):
    """By library of CUDA, the functions that the given files want of it."""
    names = {}
    for library in libraries:
        needed = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", needed):
            if re.fullmatch(PARTS, name):
                names.setdefault(name, set())
        symbols = subprocess.run(["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True)
        for function, name in re.findall(r" UND (\w+)@(\S+)", symbols.stdout):
            if re.fullmatch(PARTS, name):
                names.setdefault(name, set()).add(function)
    return names


def answers_nothing(functions):
    return "".join(f"int {function}(void) {{ return 0; }}\n" for function in functions)


def hands_on(functions, real):
    lines = ["#include <dlfcn.h>", "#include <stdlib.h>"]
    for function in functions:
        lines.append(f'__attribute__((visibility("hidden"))) void *at_{function};')
        lines.append(
            f'__asm__(".text\\n.globl {function}\\n.type {function}, @function\\n{function}:\\n'
            f'\\tjmp *at_{function}(%rip)\\n");'
        )
    lines.append("__attribute__((constructor)) static void find_all(void) {")
    lines.append(f'    void *real = dlopen("{real}", RTLD_NOW | RTLD_LOCAL);')
    lines.append("    if (real == NULL) abort();")
    lines += [f'    at_{function} = dlsym(real, "{function}");' for function in functions]
    lines.append("}")
    return "\n".join(lines) + "\n"


def make(folder, name, functions, real):
    functions = sorted(functions)
    source, script = (os.path.join(folder, f"{name}.{kind}") for kind in ("c", "map"))
    with open(source, "w") as file:
        file.write(hands_on(functions, real) if real else answers_nothing(functions))
    with open(script, "w") as file:
        exported = "".join(f"{function}; " for function in functions)
        file.write(f"{name} {{ {'global: ' if functions else ''}{exported}local: *; }};\n")
    options = ["-shared", "-fPIC", "-w", "-O1", f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}"]
    subprocess.run(["cc", *options, "-o", os.path.join(folder, name), source, "-ldl"], check=True)
    os.remove(source)
    os.remove(script)


def main():
    folder, *words = sys.argv[1:]
    split = words.index("--")
    real = dict(word.split("=", 1) for word in words[:split])
    os.makedirs(folder, exist_ok=True)
    for name, functions in wanted(words[split + 1 :]).items():
        file = real.get(name)
        if file and os.path.basename(file).endswith(name.split(".so", 1)[1]):
            # The very version that is wanted, under another name.
            link = os.path.join(folder, name)
            if os.path.lexists(link):
                os.remove(link)
            os.symlink(file, link)
        else:
            make(folder, name, functions, file)


if __name__ == "__main__":
    main()
