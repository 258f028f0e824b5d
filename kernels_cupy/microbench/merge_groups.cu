// Chosen SMs copy the same tiles into shared memory, by bulk copies (as TMA does) or by cp.async of all threads (16 bytes
// each), each starting rank * delay cycles after a common start, one tile every `period` cycles. The L2 read sectors then
// tell how many requests were merged.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void copy_bulk(char* tile, const char* from, int bytes, unsigned barrier, int phase) {
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(tile)),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
    }
    unsigned landed = 0;
    while (!landed)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(landed)
                     : "r"(barrier), "r"(phase)
                     : "memory");
}

__device__ __forceinline__ void copy_threads(char* tile, const char* from, int bytes) {
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(tile + at)), "l"(from + at) : "memory");
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
}

extern "C" __global__ void copy_together(const char* data, int tile_bytes, int tiles, const int* rank_of_sm, int sms,
                                         int delay, int period, int bulk, unsigned* arrived) {
    extern __shared__ __align__(1024) char tile[];
    __shared__ __align__(8) unsigned long long barrier;
    unsigned here;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(here));
    const int rank = rank_of_sm[here];
    if (rank < 0) return;

    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.proxy.async.shared::cta;");
        atomicAdd(arrived, 1);
        while (*reinterpret_cast<volatile unsigned*>(arrived) < sms) {}
    }
    __syncthreads();
    long long next = clock64() + 1000 + static_cast<long long>(rank) * delay;
    for (int i = 0; i < tiles; ++i) {
        while (clock64() < next) {}
        next += period;
        const char* from = data + static_cast<size_t>(i) * tile_bytes;
        if (bulk) copy_bulk(tile, from, tile_bytes, shared_address(&barrier), i & 1);
        else copy_threads(tile, from, tile_bytes);
        __syncthreads();
    }
}
