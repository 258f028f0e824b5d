// How fast an SM multiplies, adds, takes exponentials and reads shared memory: each thread repeats one instruction on
// independent registers. `cycles`: of each CTA; a kernel that this GPU has no instruction for leaves them zero.

#define BEGIN                                  \
    __syncthreads();                           \
    const long long begin = clock64();
#define END                                    \
    __syncthreads();                           \
    if (threadIdx.x == 0) cycles[blockIdx.x] = static_cast<float>(clock64() - begin);

__device__ __forceinline__ unsigned scrambled(unsigned x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    return x;
}

// mma.sync: 8 independent tiles of a warp. Operands are random numbers of like size.
#define MMA(name, shape, d_type, ab_type, mask, bits, ACC, constraint)                                          \
    extern "C" __global__ void __launch_bounds__(512, 1) name(int repeats, float *cycles, unsigned *sink) {     \
        ACC d[8][4] = {};                                                                                       \
        unsigned a[4], b[2];                                                                                    \
        for (int i = 0; i < 4; ++i) a[i] = scrambled(threadIdx.x * 8 + i) & mask | bits;                        \
        for (int i = 0; i < 2; ++i) b[i] = scrambled(threadIdx.x * 8 + 4 + i) & mask | bits;                    \
        BEGIN                                                                                                   \
        for (int r = 0; r < repeats; ++r)                                                                       \
            _Pragma("unroll") for (int j = 0; j < 8; ++j)                                                       \
                asm volatile("mma.sync.aligned." shape ".row.col." d_type "." ab_type "." ab_type "." d_type    \
                             " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                             : "+" constraint(d[j][0]), "+" constraint(d[j][1]), "+" constraint(d[j][2]),       \
                               "+" constraint(d[j][3])                                                          \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));               \
        END                                                                                                     \
        float sum = 0;                                                                                          \
        for (int j = 0; j < 8; ++j) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];                               \
        if (sum == 1.25f) *sink = 1;                                                                            \
    }

MMA(mma_fp16, "m16n8k16", "f32", "f16", 0x83ff83ffu, 0x2c002c00u, float, "f")
MMA(mma_bf16, "m16n8k16", "f32", "bf16", 0x807f807fu, 0x3d803d80u, float, "f")
MMA(mma_tf32, "m16n8k8", "f32", "tf32", 0x807fe000u, 0x3d800000u, float, "f")
MMA(mma_int8, "m16n8k32", "s32", "s8", 0xffffffffu, 0u, int, "r")
#if __CUDA_ARCH__ >= 890
MMA(mma_fp8, "m16n8k32", "f32", "e4m3", 0x87878787u, 0x28282828u, float, "f")
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// wgmma m64n256 from shared memory: A of 64 rows, B of 256 columns, 32 bytes of k an instruction, 128-byte swizzle.
#define NUMBERS_32                                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, "
#define NUMBERS_64                                                                                                    \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
#define NUMBERS_96                                                                                                    \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
    "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
#define NUMBERS_128                                                                                                  \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
    "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUM_4(c, i) "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3])
#define SUM_16(c, i) SUM_4(c, i), SUM_4(c, i + 4), SUM_4(c, i + 8), SUM_4(c, i + 12)
#define SUM_64(c, i) SUM_16(c, i), SUM_16(c, i + 16), SUM_16(c, i + 32), SUM_16(c, i + 48)
#define WGMMA(name, text, rest, ACC, c, mask, bits)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 1) name(int repeats, float *cycles, unsigned *sink) {          \
        extern __shared__ __align__(1024) unsigned tiles[];                                                          \
        ACC d[128] = {};                                                                                             \
        for (int i = threadIdx.x; i < (128 + 256) * 32; i += 256) tiles[i] = scrambled(i) & mask | bits;             \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                 \
        const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(tiles));                                \
        const unsigned long long fixed = 1ull << 62 | 1024ull >> 4 << 32 | 1ull << 16;                               \
        const unsigned long long a = fixed | (base + threadIdx.x / 128 * 8192) >> 4, b = fixed | (base + 16384) >> 4; \
        BEGIN                                                                                                        \
        for (int r = 0; r < repeats; ++r) {                                                                          \
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                  \
            _Pragma("unroll") for (int k = 0; k < 4; ++k)                                                            \
                asm volatile("wgmma.mma_async.sync.aligned." text " {" NUMBERS_32 NUMBERS_64 NUMBERS_96 NUMBERS_128  \
                             "}, %128, %129, " rest ";"                                                              \
                             : SUM_64(c, 0), SUM_64(c, 64)                                                           \
                             : "l"(a + 2 * k), "l"(b + 2 * k));                                                      \
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                                           \
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                                           \
        }                                                                                                            \
        END                                                                                                          \
        float sum = 0;                                                                                               \
        for (int i = 0; i < 128; ++i) sum += d[i];                                                                   \
        if (sum == 1.25f) *sink = 1;                                                                                 \
    }
WGMMA(wgmma_fp16, "m64n256k16.f32.f16.f16", "1, 1, 1, 0, 0", float, "f", 0x83ff83ffu, 0x2c002c00u)
WGMMA(wgmma_bf16, "m64n256k16.f32.bf16.bf16", "1, 1, 1, 0, 0", float, "f", 0x807f807fu, 0x3d803d80u)
WGMMA(wgmma_tf32, "m64n256k8.f32.tf32.tf32", "1, 1, 1", float, "f", 0x807fe000u, 0x3d800000u)
WGMMA(wgmma_fp8, "m64n256k32.f32.e4m3.e4m3", "1, 1, 1", float, "f", 0x87878787u, 0x28282828u)
WGMMA(wgmma_int8, "m64n256k32.s32.s8.s8", "1", int, "r", 0xffffffffu, 0u)
#endif

#define LANES(name, text)                                                                                    \
    extern "C" __global__ void __launch_bounds__(1024, 1) name(int repeats, float *cycles, unsigned *sink) { \
        float x[8];                                                                                          \
        for (int i = 0; i < 8; ++i) x[i] = 1e-3f * (threadIdx.x + i);                                        \
        BEGIN                                                                                                \
        _Pragma("unroll 4") for (int r = 0; r < repeats; ++r)                                                \
            _Pragma("unroll") for (int i = 0; i < 8; ++i) asm volatile(text : "+f"(x[i]));                   \
        END                                                                                                  \
        float sum = 0;                                                                                       \
        for (int i = 0; i < 8; ++i) sum += x[i];                                                             \
        if (sum == 1.25f) *sink = 1;                                                                         \
    }
LANES(fma_fp32, "fma.rn.f32 %0, %0, %0, %0;")
LANES(exp_fp32, "ex2.approx.ftz.f32 %0, %0;")

extern "C" __global__ void __launch_bounds__(1024, 1) shared_read(int repeats, float *cycles, unsigned *sink) {
    __shared__ uint4 words[1024];
    words[threadIdx.x] = make_uint4(1, 2, 3, 4);
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(words + threadIdx.x));
    unsigned sum = 0;
    BEGIN
#pragma unroll 4
    for (int r = 0; r < repeats; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            unsigned a, b, c, d;
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
            sum ^= a ^ b ^ c ^ d;
        }
    END
    if (sum == 0x12345678u) *sink = 1;
}
