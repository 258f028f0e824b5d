// Chosen SMs write to the L2 or add to what is there, each CTA its own piece again and again. How fast does each SM send?

#ifndef KIND
#define KIND 0
#endif

// One round of a CTA over a piece of 64 KiB. KIND 0: stores of whole lines, 1: additions to whole lines, 2: to a sector of
// each of eight rows of 256 bytes, as with the fragments that mma leaves in a warp; 3 and 4: bulk copies and additions (TMA)
// of 16 KiB of shared memory, of which two may be under way.
__device__ __forceinline__ void send_piece(float* piece) {
#if KIND >= 3
    extern __shared__ __align__(128) char shared[];
    if (threadIdx.x == 0) {
        unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        for (int i = 0; i < 4; i++) {
            if (KIND == 3) {
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16384;" ::"l"(piece + 4096 * i),
                             "r"(from) : "memory");
            } else {
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 16384;" ::"l"(
                                 piece + 4096 * i), "r"(from) : "memory");
            }
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
        }
    }
#else
    for (int i = threadIdx.x; i < 16384 / (KIND == 0 ? 4 : KIND == 1 ? 1 : 2); i += blockDim.x) {
        if (KIND == 0) {
            asm volatile("st.global.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(piece + 4 * i), "f"(1.0f) : "memory");
        } else if (KIND == 1) {
            asm volatile("red.global.add.f32 [%0], %1;" ::"l"(piece + i), "f"(1.0f) : "memory");
        } else {
            int tile = i / 32, lane = i % 32;
            float* at = piece + (tile / 8 * 8 + lane / 4) * 64 + tile % 8 * 8 + lane % 4 * 2;
            asm volatile("red.global.add.v2.f32 [%0], {%1, %1};" ::"l"(at), "f"(1.0f) : "memory");
        }
    }
#endif
}

// The grid fills the GPU exactly, a CTA to an SM. `rank_of_sm`: at least 0, an SM that sends. `cycles`: of each by rank,
// from a start that all CTAs wait for until it has sent everything.
extern "C" __global__ void __launch_bounds__(1024, 1)
    send(float* data, int passes, const int* rank_of_sm, unsigned* arrived, float* cycles) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    const int rank = rank_of_sm[sm];
    float* piece = data + rank * 16384ll;
    if (rank >= 0) send_piece(piece);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*reinterpret_cast<volatile unsigned*>(arrived) < gridDim.x) {}
    }
    __syncthreads();
    if (rank < 0) return;
    const long long start = clock64();
    for (int pass = 0; pass < passes; ++pass) send_piece(piece);
#if KIND >= 3
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) cycles[rank] = static_cast<float>(clock64() - start);
}
