// Chosen SMs copy the same tiles into shared memory (bulk copies, as TMA does), each starting rank * delay cycles after
// a common start, one tile every `period` cycles. The L2 read sectors then tell how many requests were merged.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

extern "C" __global__ void copy_together(const char* data, int tile_bytes, int tiles, const int* rank_of_sm, int sms,
                                         int delay, int period, unsigned* arrived) {
    extern __shared__ __align__(1024) char tile[];
    __shared__ __align__(8) unsigned long long barrier;
    unsigned here;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(here));
    const int rank = rank_of_sm[here];
    if (rank < 0 || threadIdx.x != 0) return;

    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.proxy.async.shared::cta;");
    atomicAdd(arrived, 1);
    while (*reinterpret_cast<volatile unsigned*>(arrived) < sms) {}
    long long next = clock64() + static_cast<long long>(rank) * delay;
    for (int i = 0; i < tiles; ++i) {
        while (clock64() < next) {}
        next += period;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                     "r"(tile_bytes));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(tile)),
            "l"(data + static_cast<size_t>(i) * tile_bytes), "r"(tile_bytes), "r"(shared_address(&barrier))
            : "memory");
        unsigned landed = 0;
        while (!landed) {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(landed)
                : "r"(shared_address(&barrier)), "r"(i & 1)
                : "memory");
        }
    }
}
