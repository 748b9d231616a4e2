"""A CUDA program that does what it is told, one word a line on its standard input; it knows nothing of limits.

    program.py CLIENT

    total            prints what the program believes is the GPU's size, in bytes
    free             prints what it believes is free, in bytes
    take GIB         allocates one piece; prints "took", or "refused" and the client's own words
    fill GIB         takes pieces of that size until one is refused; prints how many
    drop             frees the last piece
    spin             starts a kernel and waits for it

Each class below is one client library, used as its own documentation shows it.
"""

import sys

GIB = 1 << 30


class CudaBindings:
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

    def memory(self):
        return self.ask(self.cu.cuMemGetInfo())

    def take(self, size):
        self.pieces.append(self.ask(self.cu.cuMemAlloc(size)))

    def drop(self):
        self.ask(self.cu.cuMemFree(self.pieces.pop()))

    def spin(self):
        source = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin() { ret; }\n\0"
        module = self.ask(self.cu.cuModuleLoadData(source))
        function = self.ask(self.cu.cuModuleGetFunction(module, b"spin"))
        self.ask(self.cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        self.ask(self.cu.cuCtxSynchronize())
        self.ask(self.cu.cuModuleUnload(module))


class CudaCore(CudaBindings):
    """cuda.core: buffers out of the device's memory pool."""

    def __init__(self):
        from cuda.bindings import driver
        from cuda.core import Device

        self.cu = driver
        self.pieces = []
        self.device = Device(0)
        self.device.set_current()

    def take(self, size):
        try:
            self.pieces.append(self.device.allocate(size, stream=self.device.default_stream))
        except Exception as refusal:
            if "OUT_OF_MEMORY" not in str(refusal):
                raise
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop().close()
        self.device.default_stream.sync()


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

        self.kernel = fill

    def memory(self):
        return tuple(self.cuda.current_context().get_memory_info())

    def take(self, size):
        try:
            self.pieces.append(self.cuda.device_array(size, dtype="uint8"))
        except Exception as refusal:
            if "OUT_OF_MEMORY" not in str(refusal):
                raise
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop()
        self.cuda.current_context().deallocations.clear()

    def spin(self):
        values = self.cuda.device_array(1024, dtype="float32")
        self.kernel[8, 128](values)
        self.cuda.synchronize()


class PyCuda:
    """pycuda: linked with the driver library."""

    def __init__(self):
        import pycuda.autoinit  # noqa: F401  makes the context
        import pycuda.driver

        self.driver = pycuda.driver
        self.pieces = []

    def memory(self):
        return self.driver.mem_get_info()

    def take(self, size):
        try:
            self.pieces.append(self.driver.mem_alloc(size))
        except self.driver.MemoryError as refusal:
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop().free()

    def spin(self):
        source = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin() { ret; }\n"
        function = self.driver.module_from_buffer(source).get_function("spin")
        function(block=(1, 1, 1))
        self.driver.Context.synchronize()


class Torch:
    """PyTorch 1.8.1: its own cudart 10.2, and a caching allocator."""

    def __init__(self):
        import torch

        self.torch = torch
        self.pieces = []
        # The context, and with it a thousand modules.
        torch.zeros(1, device="cuda")

    def memory(self):
        total = self.torch.cuda.get_device_properties(0).total_memory
        return total - self.torch.cuda.memory_reserved(), total

    def take(self, size):
        try:
            self.pieces.append(self.torch.empty(size, dtype=self.torch.uint8, device="cuda"))
        except RuntimeError as refusal:
            if "out of memory" not in str(refusal):
                raise
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop()
        self.torch.cuda.empty_cache()

    def spin(self):
        self.torch.cuda.synchronize()


class Triton(Torch):
    """Triton: a kernel that it compiles, and a launcher that the C compiler makes; tensors are PyTorch's."""

    def __init__(self):
        super().__init__()
        from triton_kernel import fill

        self.kernel = fill

    def spin(self):
        values = self.torch.empty(1000, dtype=self.torch.int32, device="cuda")
        self.kernel[(8,)](values, 1000, block=128)
        self.torch.cuda.synchronize()


class Cupy:
    """CuPy 10.6 for CUDA 10.2: its own pool of memory, kernels made by NVRTC."""

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.pieces = []
        cupy.cuda.Device(0).use()
        cupy.cuda.runtime.free(0)

    def memory(self):
        return self.cupy.cuda.runtime.memGetInfo()

    def take(self, size):
        try:
            self.pieces.append(self.cupy.empty(size, dtype="uint8"))
        except self.cupy.cuda.memory.OutOfMemoryError as refusal:
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop()
        self.cupy.get_default_memory_pool().free_all_blocks()

    def spin(self):
        values = self.cupy.zeros(1000, dtype="float32")
        values += 1
        self.cupy.cuda.runtime.deviceSynchronize()


class Mxnet:
    """Apache MXNet 1.6 for CUDA 10.1: arrays made by an engine of threads, and a pool of memory."""

    def __init__(self):
        import mxnet

        self.mxnet = mxnet
        self.gpu = mxnet.gpu(0)
        self.pieces = []
        mxnet.nd.zeros(1, ctx=self.gpu).wait_to_read()

    def memory(self):
        return self.mxnet.context.gpu_memory_info(0)

    def take(self, size):
        try:
            piece = self.mxnet.nd.empty(size, ctx=self.gpu, dtype="uint8")
            piece[:] = 1
            piece.wait_to_read()
            self.pieces.append(piece)
        except self.mxnet.MXNetError as refusal:
            if "out of memory" not in str(refusal):
                raise
            raise MemoryError(str(refusal)) from refusal

    def drop(self):
        self.pieces.pop()
        self.gpu.empty_cache()

    def spin(self):
        (self.mxnet.nd.ones((100, 10), ctx=self.gpu) + 1).wait_to_read()


class Cudart:
    """The CUDA runtime library that CUDART names, through ctypes. From 11.2 on it wants a genuine driver."""

    def __init__(self):
        import ctypes
        import os

        self.c = ctypes
        self.cudart = ctypes.CDLL(os.environ["CUDART"])
        self.pieces = []
        self.ask(self.cudart.cudaFree(None))

    def ask(self, code):
        if code:
            name = self.cudart.cudaGetErrorName
            name.restype = self.c.c_char_p
            raise MemoryError(name(code).decode())

    def memory(self):
        free, total = self.c.c_size_t(), self.c.c_size_t()
        self.ask(self.cudart.cudaMemGetInfo(self.c.byref(free), self.c.byref(total)))
        return free.value, total.value

    def take(self, size):
        piece = self.c.c_void_p()
        self.ask(self.cudart.cudaMalloc(self.c.byref(piece), self.c.c_size_t(size)))
        self.pieces.append(piece)

    def drop(self):
        self.ask(self.cudart.cudaFree(self.pieces.pop()))

    def spin(self):
        self.ask(self.cudart.cudaDeviceSynchronize())


CLIENTS = {
    "cudart": Cudart,
    "cuda-bindings": CudaBindings,
    "cuda-core": CudaCore,
    "numba": Numba,
    "pycuda": PyCuda,
    "torch": Torch,
    "triton": Triton,
    "cupy": Cupy,
    "mxnet": Mxnet,
}


def answer(program, word, rest):
    if word == "total":
        return program.memory()[1]
    if word == "free":
        return program.memory()[0]
    if word == "take":
        program.take(int(float(rest[0]) * GIB))
        return "took"
    if word == "fill":
        count = 0
        try:
            while True:
                program.take(int(float(rest[0]) * GIB))
                count += 1
        except MemoryError:
            return count
    getattr(program, word)()
    return "done"


def main():
    program = CLIENTS[sys.argv[1]]()
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            print(answer(program, word, rest), flush=True)
        except MemoryError as refusal:
            print("refused", " ".join(str(refusal).split()), flush=True)


if __name__ == "__main__":
    main()
