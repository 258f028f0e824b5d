// fp32 additions to global memory: by warps (red.global.add, 4 or 16 bytes a thread), and in bulk from shared memory
// (cp.reduce.async.bulk). Every CTA adds to pieces of 16 KiB, grid-stride, over and over.

constexpr int PIECE = 4096;  // floats

extern "C" __global__ void add_words(float* sums, int pieces, int passes) {
    for (int pass = 0; pass < passes; ++pass)
        for (int p = (blockIdx.x + pass * 37) % gridDim.x; p < pieces; p += gridDim.x)
            for (int i = threadIdx.x; i < PIECE; i += blockDim.x)
                asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sums + p * PIECE + i), "f"(1.0f) : "memory");
}

extern "C" __global__ void add_vectors(float* sums, int pieces, int passes) {
    for (int pass = 0; pass < passes; ++pass)
        for (int p = (blockIdx.x + pass * 37) % gridDim.x; p < pieces; p += gridDim.x)
            for (int i = 4 * threadIdx.x; i < PIECE; i += 4 * blockDim.x)
                asm volatile("red.global.add.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(sums + p * PIECE + i), "f"(1.0f)
                             : "memory");
}

extern "C" __global__ void add_bulk(float* sums, int pieces, int passes) {
    __shared__ __align__(128) float tile[PIECE];
    for (int i = threadIdx.x; i < PIECE; i += blockDim.x) tile[i] = 1.0f;
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    if (threadIdx.x != 0) return;
    const unsigned source = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    for (int pass = 0; pass < passes; ++pass)
        for (int p = (blockIdx.x + pass * 37) % gridDim.x; p < pieces; p += gridDim.x) {
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                             sums + p * PIECE),
                         "r"(source), "r"(PIECE * 4)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;");
        }
    asm volatile("cp.async.bulk.wait_group 0;");
}
