#define KERNEL(name, step, add)                                                                        \
    extern "C" __global__ void name(float* sums, int pieces, int passes) {                             \
        for (int pass = 0; pass < passes; ++pass)                                                      \
            for (int p = (blockIdx.x + pass * 37) % gridDim.x; p < pieces; p += gridDim.x)             \
                for (int i = step * threadIdx.x; i < 4096; i += step * blockDim.x) {                   \
                    float* to = sums + p * 4096 + i;                                                   \
                    add                                                                                \
                }                                                                                      \
    }
KERNEL(add_words, 1, asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(1.0f) : "memory");)
#if __CUDA_ARCH__ >= 900  // earlier ones have no vector additions
// A warp adds 32 bytes to each of eight rows of 256, as it does with the fragments that mma leaves in it.
KERNEL(add_fragments, 2, int tile = i / 64; int lane = i / 2 % 32;
       float* at = to - i + (tile / 8 * 8 + lane / 4) * 64 + tile % 8 * 8 + lane % 4 * 2;
       asm volatile("red.global.add.v2.f32 [%0], {%1,%1};" ::"l"(at), "f"(1.0f) : "memory");)
KERNEL(add_vectors, 4, asm volatile("red.global.add.v4.f32 [%0], {%1,%1,%1,%1};" ::"l"(to), "f"(1.0f) : "memory");)
#endif
