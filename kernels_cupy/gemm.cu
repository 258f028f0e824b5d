// Batched C = scale * A B, one CTA per output tile, for the kernels of attention in three steps (see gemm.py).

#include "cta_record.cuh"
#include "gemm.cuh"

// Tile (m, n) number `number` of a matrix of blocks_m x blocks_n tiles: strips of `strip` tiles, each swept in raster
// order, along columns or along rows.
__device__ __forceinline__ int2 tile_position(int number, int blocks_m, int blocks_n, int strip) {
    int fast = ALONG_N ? blocks_n : blocks_m, slow = ALONG_N ? blocks_m : blocks_n;
    if (strip == 0 || strip > fast) strip = fast;
    int first = number / (strip * slow), rest = number % (strip * slow);
    int across = min(strip, fast - first * strip);
    int there = rest / across, here = first * strip + rest % across;
    return ALONG_N ? make_int2(there, here) : make_int2(here, there);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS_M *WARPS_N, CTAS_PER_SM)
    ENTRY(const T *a, const T *b, T *c,  // element strides of the three: from batch to batch, head to head, row to row
          long long a_batch, long long a_head, long long a_row, long long b_batch, long long b_head, long long b_row,
          long long c_batch, long long c_head, long long c_row, int heads, int group, int m, int n, int k, int strip,
          float scale) {
    CtaRecord record;
    extern __shared__ __align__(128) char shared[];
    int blocks_m = (m + TILE_M - 1) / TILE_M, blocks_n = (n + TILE_N - 1) / TILE_N;
    int matrix = blockIdx.x / (blocks_m * blocks_n);
    int2 tile = tile_position(blockIdx.x % (blocks_m * blocks_n), blocks_m, blocks_n, strip);
    int batch = matrix / heads, head = matrix % heads;
    a += batch * a_batch + head * a_head;
    b += batch * b_batch + head / group * b_head;
    c += batch * c_batch + head * c_head;
    Gemm<T, TILE_M, TILE_N, TILE_K, STAGES, WARPS_M, WARPS_N, VECTOR_A, VECTOR_B, VECTOR_C, A_ALONG_M, B_ALONG_N> gemm;
    stamp(kPlaced);
    gemm.run(shared, {a, a_row}, {b, b_row}, {c, c_row}, tile.x * TILE_M, m, tile.y * TILE_N, n, k,
             scale);
}
