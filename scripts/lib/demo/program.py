"""A CUDA program that does what it is told, one word a line on its standard input.

    total            prints what the program believes is the card's size
    take GIB         allocates one piece; prints "took", or the driver's refusal
    drop             frees the last piece
    spin             starts a kernel and waits for it (numba only)

It is written against cuda-python or against numba, and knows nothing of limits.
"""

import sys

GIB = 1 << 30


class CudaPython:
    """cuda.bindings: the driver API as it is."""

    def __init__(self):
        from cuda.bindings import driver

        self.cu = driver
        self.pieces = []
        self.ask(driver.cuInit(0))
        device = self.ask(driver.cuDeviceGet(0))
        self.ask(driver.cuCtxSetCurrent(self.ask(driver.cuDevicePrimaryCtxRetain(device))))

    def ask(self, answer):
        code, *values = answer
        if code != self.cu.CUresult.CUDA_SUCCESS:
            raise MemoryError(code.name)
        return values[0] if len(values) == 1 else values

    def total(self):
        return self.ask(self.cu.cuMemGetInfo())[1]

    def take(self, size):
        self.pieces.append(self.ask(self.cu.cuMemAlloc(size)))

    def drop(self):
        self.ask(self.cu.cuMemFree(self.pieces.pop()))

    def spin(self):
        raise ValueError("no kernel here")


class Numba:
    """numba: arrays and a kernel that its compiler makes."""

    def __init__(self):
        from numba import cuda

        self.cuda = cuda
        self.pieces = []

        @cuda.jit
        def fill(values):
            at = cuda.grid(1)
            if at < values.size:
                values[at] = at

        self.fill = fill

    def total(self):
        return self.cuda.current_context().get_memory_info().total

    def take(self, size):
        from numba.cuda.cudadrv.driver import CudaAPIError

        try:
            self.pieces.append(self.cuda.device_array(size, dtype="uint8"))
        except CudaAPIError as refusal:
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop()
        self.cuda.current_context().deallocations.clear()

    def spin(self):
        values = self.cuda.device_array(1024, dtype="float32")
        self.fill[8, 128](values)
        self.cuda.synchronize()


def main():
    program = {"cuda-python": CudaPython, "numba": Numba}[sys.argv[1]]()
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            if word == "total":
                print(program.total(), flush=True)
                continue
            if word == "take":
                program.take(int(float(rest[0]) * GIB))
            else:
                getattr(program, word)()
            print("took" if word == "take" else "done", flush=True)
        except MemoryError as refusal:
            print(f"refused {refusal}", flush=True)


main()
