// The client of tests/clients/program.py as an nvcc program. It reads one command on each line.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

__global__ void fill(float *values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] = at;
}

static std::vector<void *> pieces;

static cudaError_t take(const char *gib) {
    void *piece = nullptr;
    cudaError_t error = cudaMalloc(&piece, (size_t)(atof(gib) * (1 << 30)));
    if (error == cudaSuccess) pieces.push_back(piece);
    else cudaGetLastError();
    return error;
}

int main() {
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        char word[32] = "", rest[32] = "";
        sscanf(line, "%31s %31s", word, rest);
        size_t free_bytes = 0, total = 0;
        if (!strcmp(word, "total") || !strcmp(word, "free")) {
            if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 1;
            printf("%zu\n", *word == 't' ? total : free_bytes);
        } else if (!strcmp(word, "take")) {
            cudaError_t error = take(rest);
            if (error == cudaSuccess) puts("took");
            else printf("refused %s\n", cudaGetErrorName(error));
        } else if (!strcmp(word, "fill")) {
            int count = 0;
            while (take(rest) == cudaSuccess) count++;
            printf("%d\n", count);
        } else if (!strcmp(word, "drop")) {
            if (cudaFree(pieces.back()) != cudaSuccess) return 1;
            pieces.pop_back();
            puts("done");
        } else if (!strcmp(word, "spin")) {
            static float *values = nullptr;
            if (!values && cudaMalloc(&values, 4096) != cudaSuccess) return 1;
            fill<<<4, 256>>>(values, 1024);
            if (cudaDeviceSynchronize() != cudaSuccess) return 1;
            puts("done");
        }
        fflush(stdout);
    }
    return 0;
}
