// Decoding with latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, as decoded): many query rows against one part of
// a cache with one latent per token, which is K, and whose first DIM_V columns are V.
//
//            keys →          columns of V →       One CTA owns TILE_Q rows and one part of the keys. Warps are in
//          ┌──┬──┬──┬──┐    ┌────┬────┬────┬────┐ row groups of up to 32 rows. Each warp of a group multiplies a few
//  rows    │w0│w1│w2│w3│    │ w0 │ w1 │ w2 │ w3 │ keys of a step; the row maxima and P of all are exchanged through
//          ├──┼──┼──┼──┤    ├────┼────┼────┼────┤ shared memory; then each adds P V to its columns of O, which fit
//          │w4│w5│w6│w7│    │ w4 │ w5 │ w6 │ w7 │ its registers. Both products read the same tile, so that a latent
//          └──┴──┴──┴──┘    └────┴────┴────┴────┘ comes from HBM, and into shared memory, once.
//             S of a step             O
//
// Macros: T, DIM, DIM_V, TILE_Q, TILE_KV, STAGES, WARPS, PAGE (tokens per page, 0: a contiguous cache), RESULT; and, as
// 0 or 1, PARTS_SLOWEST, CAUSAL, WINDOW, VARLEN, TOKEN_MAJOR (of Q and O).
#include "cta_record.cuh"
#include "decode_latent.cuh"
#include "decode_results.cuh"
#include "fragments.cuh"
#include "matrix.cuh"

// `o`, `first` and `sums` are those of decode.cu.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    decode_latent(const T *__restrict__ q, const T *__restrict__ kv,
#if PAGE
                  const int *__restrict__ block_table,
#endif
                  void *__restrict__ o, float *__restrict__ first,
#if RESULT == 2
                  float *__restrict__ sums,
#endif
#if VARLEN
                  const int *query_starts, const int *key_starts,
#endif
                  int batch, int heads, int kv_heads, int group, int block_heads, int block_tokens, int group_blocks,
                  int token_blocks, int seq, int seq_kv, int parts, int part_keys, int window, int table_width,
                  float scale) {
    CtaRecord record;
#if !VARLEN
    const int *query_starts = nullptr, *key_starts = nullptr;
#endif
#if RESULT != 2
    float *sums = nullptr;
#endif
#if !PAGE
    const int *block_table = nullptr;
#endif
    extern __shared__ __align__(128) char shared[];
    DecodeGrid grid{batch, heads, kv_heads, group, block_heads, block_tokens, group_blocks, token_blocks, seq, seq_kv,
                    parts, part_keys, WINDOW ? window : 0, query_starts, key_starts};
    DecodePart x = decode_part<TILE_KV, PARTS_SLOWEST, CAUSAL>(blockIdx.x, grid);
    if (x.tokens <= 0) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = x.tile_rows();
    int row_group = warp / kColumnGroups, column_group = warp % kColumnGroups, first_row = row_group * 16 * kRowTiles;
    char *q_tile = shared, *stages = q_tile + TILE_Q * kRowBytes, *p_tile = stages + STAGES * kStageBytes;
    float *maxima = reinterpret_cast<float *>(p_tile + TILE_Q * TILE_KV * sizeof(T));  // [kColumnGroups, TILE_Q]

    LatentCache cache{kv, nullptr, x.first, x.first + x.keys};
    if constexpr (PAGE > 0) {
        cache.table = block_table + static_cast<long long>(x.sequence) * table_width;
    } else {
        cache.kv += (x.batch * x.k_rows + x.k_row) * DIM;
    }
    int steps = (x.keys + TILE_KV - 1) / TILE_KV;
    LatentPages pages_next = cache.look_up(0);
    auto start = [&](int step) {  // every copy is a group of its own; past the end the groups are empty
        LatentPages pages = pages_next;
        pages_next = cache.look_up(step + 1);
        if (step < steps) cache.copy(stages + step % STAGES * kStageBytes, step, pages);
        commit_copies();
    };

    float output[kRowTiles][kOutputTiles][4], maximum[kRowTiles][2], total[kRowTiles][2];  // total: this lane's share
    clear(output);
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) maximum[m][half] = -CUDART_INF_F, total[m][half] = 0.0f;
    auto row_of = [&](int m, int half) { return first_row + m * 16 + half * 8 + lane / 4; };

    stamp(kPlaced);
    if (steps > 0) {
        constexpr int kChunks = DIM / 8;
        long long q_pitch = pitch_of<DIM, TOKEN_MAJOR>(heads);
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE_Q * kChunks; i += kThreads) {
            int r = i / kChunks, chunk = i % kChunks, used = min(r, rows - 1);
            const T *source = head_of<DIM, TOKEN_MAJOR>(q, x.batch, x.head + used / x.tokens, heads, x.rows) +
                              (x.row + used % x.tokens) * q_pitch + chunk * 8;
            copy_async<16>(shared_address(q_tile) + LatentRow::offset(r, chunk), source, r < rows);
        }
        commit_copies();
#pragma unroll 1
        for (int step = 0; step < STAGES; step++) start(step);
        stamp(kIssued);
    }

    float scale_log2 = scale * kLog2E;
    unsigned queries = shared_address(q_tile) + first_row * kRowBytes;
    unsigned weights = shared_address(p_tile) + first_row * TILE_KV * sizeof(T);
    for (int step = 0; step < steps; step++) {
        if (step) {
            wait_copies<STAGES - 2>();
        } else {
            wait_copies<STAGES - 1>();
        }
        __syncthreads();  // KV_j is there, and KV_j-1 is done with
        stamp(kArrived, step);
        if (step) start(step - 1 + STAGES);
        unsigned tile = shared_address(stages) + step % STAGES * kStageBytes;

        // S of this warp's keys. Operands are fetched one round ahead of their products, here and below.
        float scores[kRowTiles][kKeyTiles][4];
        clear(scores);
        unsigned keys = tile + column_group * kKeys * kRowBytes;
        unsigned a[2][kRowTiles][2][4], b[2][kKeyTiles][4];
        auto fetch = [&](int pair) {
#pragma unroll
            for (int m = 0; m < kRowTiles; m++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    load_matrices(a[pair % 2][m][i], queries + m * 16 * kRowBytes +
                                                         LatentRow::offset(lane % 16, 4 * pair + 2 * i + lane / 16));
#pragma unroll
            for (int n = 0; n < kKeyTiles; n++)
                load_matrices(b[pair % 2][n],
                              keys + n * 8 * kRowBytes + LatentRow::offset(lane % 8, 4 * pair + lane / 8));
        };
        fetch(0);
#pragma unroll
        for (int pair = 0; pair < kSteps / 2; pair++) {
            if (pair + 1 < kSteps / 2) fetch(pair + 1);
#pragma unroll
            for (int n = 0; n < kKeyTiles; n++)
#pragma unroll
                for (int m = 0; m < kRowTiles; m++) {
                    const unsigned(&operand)[4] = b[pair % 2][n];
                    multiply<T>(scores[m][n], a[pair % 2][m][0], operand[0], operand[1]);
                    multiply<T>(scores[m][n], a[pair % 2][m][1], operand[2], operand[3]);
                }
        }

        int key = step * TILE_KV + column_group * kKeys;
        bool hides = key + kKeys > x.keys || (CAUSAL && key + kKeys > x.diagonal + 1) ||
                     (WINDOW && key <= x.tokens - 1 + x.diagonal - window);
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row_of(m, half);
                if (hides) {
                    int end = r % x.tokens + x.diagonal + 1 - key, begin = end - window;
                    hide_columns<WINDOW>(scores[m], half, begin, CAUSAL ? min(end, x.keys - key) : x.keys - key);
                }
                float top = row_maximum(scores[m], half, -CUDART_INF_F);
                if (lane % 4 == 0) maxima[column_group * TILE_Q + r] = top;
            }
        sync_row_group(row_group);

        // P of these keys, into shared memory.
        float decay[kRowTiles][2];
        bool rose = false;
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row_of(m, half);
                float top = maximum[m][half];
#pragma unroll
                for (int i = 0; i < kColumnGroups; i++) top = fmaxf(top, maxima[i * TILE_Q + r]);
                float shift = safe_maximum(top) * scale_log2, sum = 0.0f;
                decay[m][half] = exp2_fast(maximum[m][half] * scale_log2 - shift);
                rose |= top != maximum[m][half];
                maximum[m][half] = top;
#pragma unroll
                for (int n = 0; n < kKeyTiles; n++) {
                    float2 p = {exp2_fast(fmaf(scores[m][n][2 * half], scale_log2, -shift)),
                                exp2_fast(fmaf(scores[m][n][2 * half + 1], scale_log2, -shift))};
                    sum += p.x + p.y;
                    unsigned place = WeightRow::offset(r, column_group * kKeyTiles + n) + lane % 4 * 4;
                    *reinterpret_cast<unsigned *>(p_tile + place) = pack<T>(p.x, p.y);
                }
                total[m][half] = total[m][half] * decay[m][half] + sum;
            }
        if (__any_sync(~0u, rose)) scale_rows(output, decay);
        sync_row_group(row_group);

        // O += P V of this warp's columns.
        constexpr int kPairs = kOutputTiles / 2;  // of output tiles, for each 16 keys
        unsigned p[2][kRowTiles][4], v[2][4];
        auto fetch_values = [&](int round) {
            int part = round / kPairs, n = round % kPairs;
            if (n == 0) {
#pragma unroll
                for (int m = 0; m < kRowTiles; m++)
                    load_matrices(p[part % 2][m], weights + m * 16 * TILE_KV * sizeof(T) +
                                                      WeightRow::offset(lane % 16, 2 * part + lane / 16));
            }
            int chunk = column_group * kOutputTiles + 2 * n + lane / 16;
            load_matrices_transposed(v[round % 2], tile + part * 16 * kRowBytes + LatentRow::offset(lane % 16, chunk));
        };
        fetch_values(0);
#pragma unroll
        for (int round = 0; round < TILE_KV / 16 * kPairs; round++) {
            if (round + 1 < TILE_KV / 16 * kPairs) fetch_values(round + 1);
            int part = round / kPairs, n = round % kPairs;
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) {
                multiply<T>(output[m][2 * n], p[part % 2][m], v[round % 2][0], v[round % 2][1]);
                multiply<T>(output[m][2 * n + 1], p[part % 2][m], v[round % 2][2], v[round % 2][3]);
            }
        }
    }
    stamp(kMultiplied, steps - 1);
    wait_copies<0>();
    __syncthreads();  // from here on there are O where Q and KV were, sums instead of maxima, maxima instead of P

    float *outputs = reinterpret_cast<float *>(shared), *totals = maxima;
    float *final_maxima = reinterpret_cast<float *>(p_tile);
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = lane_sum<4>(total[m][half]);
            if (lane % 4 == 0) {
                totals[column_group * TILE_Q + row_of(m, half)] = sum;
                final_maxima[row_of(m, half)] = maximum[m][half];
            }
        }
    __syncthreads();
    auto row_total = [&](int r) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kColumnGroups; i++) sum += totals[i * TILE_Q + r];
        return sum;
    };
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row_of(m, half);
            float inverse = safe_inverse(row_total(r));
            float *target = outputs + r * kOutputPitch + column_group * kColumns + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kOutputTiles; n++)
                *reinterpret_cast<float2 *>(target + n * 8) =
                    make_float2(output[m][n][2 * half] * inverse, output[m][n][2 * half + 1] * inverse);
        }
    __syncthreads();
    stamp(kReady);
    for (int i = threadIdx.x; i < rows * (DIM_V / 4); i += kThreads) {
        int r = i / (DIM_V / 4), column = i % (DIM_V / 4) * 4;
        store_columns(o, x, heads, parts, r, column, *reinterpret_cast<float4 *>(outputs + r * kOutputPitch + column));
    }
    for (int r = threadIdx.x; r < rows; r += kThreads)
        store_row(first, sums, x, heads, parts, r, final_maxima[r] * scale, row_total(r));
}
