// The words of ../program.py, said in Java: JCuda, whose CUDA runtime 10.2 is within its own library.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Deque;
import jcuda.CudaException;
import jcuda.Pointer;
import jcuda.driver.CUfunction;
import jcuda.driver.CUmodule;
import jcuda.driver.JCudaDriver;
import jcuda.runtime.JCuda;
import jcuda.runtime.cudaError;

public class Program {
    private static final String SPIN =
        ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin() { ret; }\n\0";

    private final Deque<Pointer> pieces = new ArrayDeque<>();

    public static void main(String[] words) throws Exception {
        JCuda.setExceptionsEnabled(true);
        JCudaDriver.setExceptionsEnabled(true);
        JCuda.cudaFree(new Pointer());
        Program program = new Program();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(program.answer(line.split(" ")));
            System.out.flush();
        }
    }

    private String answer(String[] words) {
        switch (words[0]) {
            case "total":
                return Long.toString(memory()[1]);
            case "free":
                return Long.toString(memory()[0]);
            case "take":
                try {
                    take(words[1]);
                    return "took";
                } catch (CudaException refusal) {
                    return "refused " + wordsOf(refusal);
                }
            case "fill":
                for (int count = 0;; count++) {
                    try {
                        take(words[1]);
                    } catch (CudaException refusal) {
                        wordsOf(refusal);
                        return Integer.toString(count);
                    }
                }
            case "drop":
                JCuda.cudaFree(pieces.removeLast());
                return "done";
            case "spin":
                spin();
                return "done";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private long[] memory() {
        long[] free = {0};
        long[] total = {0};
        JCuda.cudaMemGetInfo(free, total);
        return new long[] {free[0], total[0]};
    }

    private void take(String gib) {
        Pointer piece = new Pointer();
        JCuda.cudaMalloc(piece, (long) (Double.parseDouble(gib) * (1 << 30)));
        pieces.addLast(piece);
    }

    private void spin() {
        CUmodule module = new CUmodule();
        JCudaDriver.cuModuleLoadData(module, SPIN);
        CUfunction function = new CUfunction();
        JCudaDriver.cuModuleGetFunction(function, module, "spin");
        JCudaDriver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null, null, null);
        JCuda.cudaDeviceSynchronize();
        JCudaDriver.cuModuleUnload(module);
    }

    /** The client's words for "out of memory"; any other failure ends the program. */
    private static String wordsOf(CudaException refusal) {
        if (!refusal.getMessage().contains(cudaError.stringFor(cudaError.cudaErrorMemoryAllocation))) {
            throw refusal;
        }
        return refusal.getMessage();
    }
}
