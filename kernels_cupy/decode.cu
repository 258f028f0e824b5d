// Decoding: few query rows against one part of a long KV cache ("Flash-Decoding", Dao et al. 2023).
//
//            keys →  step 0           step 1           One CTA owns the TILE_Q rows of a KV head's query heads and
//          ┌──┬──┬──┬──┐    ┌──┬──┬──┬──┐    ┌─      one part of its keys. Of every step each warp takes kKeys keys,
//  TILE_Q  │w0│w1│w2│w3│    │w0│w1│w2│w3│    │w0  …  with a ring of STAGES buffers, a running softmax and an output
//          └──┴──┴──┴──┘    └──┴──┴──┴──┘    └─      of its own, so that warps never wait for each other until the
//            TILE_KV                                 end, when their outputs are merged in shared memory.
//
// The cache is what takes time: its bytes go from HBM to shared memory by cp.async, STAGES - 1 steps ahead, and from
// there straight into tensor-core operands, codes (int8, fp8) included; scales are applied to Q, S, P or O instead.
//
// Macros: T, KEY, VALUE (T or a code), DIM, DIM_V, TILE_Q, ROWS (of these, the most that any CTA has), TILE_KV, STAGES,
// WARPS, PAGE (tokens per page, 0: a contiguous cache), RUN (how many keys of a warp's step always follow each other in
// the cache: kKeys, a part of it, or 1), RESULT, KEY_SCALE, VALUE_SCALE, OUTLIERS (channels of K that are in T besides,
// where its codes are 0); and, as 0 or 1, PARTS_SLOWEST, CAUSAL, WINDOW, VARLEN, TOKEN_MAJOR.
#include "cta_record.cuh"
#include "decode_cache.cuh"
#include "decode_results.cuh"
#include "decode_tiles.cuh"
#include "decode_warp.cuh"

// `o` and `first` are O and LSE; a part's O [batch, heads, parts, rows, DIM_V] and LSE [batch, heads, parts, rows]; or,
// with `sums`, that O, maxima and sums.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    decode(const T *__restrict__ q, const KEY *__restrict__ k, const VALUE *__restrict__ v,
#if KEY_SCALE
           const float *__restrict__ k_scale,
#endif
#if OUTLIERS
           const T *__restrict__ k_outliers, const int *__restrict__ outlier_channels,
#endif
#if VALUE_SCALE
           const float *__restrict__ v_scale,
#endif
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
#if RESULT != 2
    float *sums = nullptr;
#endif
#if !VARLEN
    const int *query_starts = nullptr, *key_starts = nullptr;
#endif
#if !KEY_SCALE
    const float *k_scale = nullptr;
#endif
#if !VALUE_SCALE
    const float *v_scale = nullptr;
#endif
#if !OUTLIERS
    const T *k_outliers = nullptr;
    const int *outlier_channels = nullptr;
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
    char *q_tile = shared, *stages = q_tile + TILE_Q * DIM * sizeof(T);

    Cache cache{};
    long long head = static_cast<long long>(x.batch) * kv_heads + x.kv_head;  // of a contiguous cache
    if constexpr (PAGE > 0) {
        cache.k = k + x.kv_head * DIM, cache.v = v + x.kv_head * DIM_V;
        cache.k_pitch = kv_heads * DIM;
        cache.v_pitch = kv_heads * DIM_V;
        cache.pages = block_table + static_cast<long long>(x.sequence) * table_width;
        cache.k_scale = k_scale + x.kv_head * PAGE, cache.v_scale = v_scale + x.kv_head * PAGE;
        cache.page_scales = kv_heads * PAGE;
        cache.k_outliers = k_outliers + x.kv_head * PAGE * OUTLIERS;
    } else {
        cache.k_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads), cache.v_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(kv_heads);
        cache.k = head_of<DIM, TOKEN_MAJOR>(k, x.batch, x.kv_head, kv_heads, x.k_rows) + x.k_row * cache.k_pitch;
        cache.v = head_of<DIM_V, TOKEN_MAJOR>(v, x.batch, x.kv_head, kv_heads, x.k_rows) + x.k_row * cache.v_pitch;
        cache.k_scale = k_scale + head * x.k_rows + x.k_row, cache.v_scale = v_scale + head * x.k_rows + x.k_row;
        cache.k_outliers = k_outliers + (head * x.k_rows + x.k_row) * OUTLIERS;
    }
    long long scale_head = static_cast<long long>(x.sequence) * kv_heads + x.kv_head;  // of scales per channel or head

    // This warp's keys of step j are [warp_key + j TILE_KV, … + kKeys) of the part.
    int warp_key = warp * kKeys;
    int steps = (x.keys - warp_key + TILE_KV - 1) / TILE_KV;
    auto key_tile = [&](int position) { return stages + position % STAGES * kStageBytes + warp_key * kKeyBytes; };
    auto value_tile = [&](int position) {
        return stages + position % STAGES * kStageBytes + TILE_KV * kKeyBytes + warp_key * kValueBytes;
    };
    auto token_scales = [&](int position, int which) {
        char *stage = stages + position % STAGES * kStageBytes + TILE_KV * (kKeyBytes + kValueBytes);
        return reinterpret_cast<float *>(stage) + which * TILE_KV + warp_key;
    };
    auto outliers = [&](int position) {
        char *stage = stages + position % STAGES * kStageBytes + TILE_KV * (kKeyBytes + kValueBytes + 4 * kTokenScales);
        return stage + warp_key * kOutlierBytes;
    };
    // Every copy is a group of its own, in the order K0 V0 K1 V1 …; past the end the groups are empty.
    StepRows step_rows(cache.pages, x.first + warp_key, x.first + x.keys);
    Rows rows_now;
    auto start_keys = [&](int position) {
        rows_now = step_rows.next(position);
        if (position < steps) {
            copy_keys<KeyRow, DIM>(key_tile(position), cache.k, cache.k_pitch, rows_now);
            if constexpr (KEY_SCALE == kPerToken)
                copy_scales(token_scales(position, 0), cache.k_scale, cache, rows_now);
            if constexpr (OUTLIERS > 0) copy_outliers(outliers(position), cache, rows_now);
        }
        commit_copies();
    };
    auto start_values = [&](int position) {
        if (position < steps) {
            copy_keys<ValueRow, DIM_V>(value_tile(position), cache.v, cache.v_pitch, rows_now);
            if constexpr (VALUE_SCALE == kPerToken)
                copy_scales(token_scales(position, KEY_SCALE == kPerToken), cache.v_scale, cache, rows_now);
        }
        commit_copies();
    };

    WarpRows w;
    Query query;
    OutlierQuery outlier_query;
    int token[kRowTiles][kHalves];
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int half = 0; half < kHalves; half++) {
            token[m][half] = remainder(m * 16 + half * 8 + lane / 4, x.tokens);
            w.maximum[m][half] = -CUDART_INF_F, w.total[m][half] = 0.0f;
        }
#pragma unroll
        for (int n = 0; n < kAccumulators; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) w.output[m][n][e] = 0.0f;
    }

    stamp(kPlaced);
    if (x.keys) {
        constexpr int kChunks = DIM / 8;
        long long q_pitch = pitch_of<DIM, TOKEN_MAJOR>(heads);
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE_Q * kChunks; i += kThreads) {
            int r = i / kChunks, chunk = i % kChunks, used = min(r, rows - 1);
            const T *source = head_of<DIM, TOKEN_MAJOR>(q, x.batch, x.head + quotient(used, x.tokens), heads, x.rows) +
                              (x.row + remainder(used, x.tokens)) * q_pitch + chunk * 8;
            copy_async<16>(shared_address(q_tile) + QueryRow::offset(r, chunk), source, r < rows);
        }
        commit_copies();
#pragma unroll
        for (int position = 0; position < STAGES; position++) {
            start_keys(position);
            start_values(position);
        }
        stamp(kIssued);
        wait_copies<2 * STAGES>();
        __syncthreads();
        if constexpr (OUTLIERS > 0) {
            fetch_outlier_query(outlier_query, q_tile, outlier_channels + x.kv_head * OUTLIERS);
            if constexpr (KEY_SCALE == kPerChannel) __syncthreads();  // outliers meet Q without those scales
        }
        if constexpr (KEY_SCALE == kPerChannel) {
            for (int i = threadIdx.x; i < TILE_Q * DIM / 2; i += kThreads) {
                int column = i % (DIM / 2) * 2;
                unsigned &pair = *reinterpret_cast<unsigned *>(
                    q_tile + QueryRow::offset(i / (DIM / 2), column / 8) + column % 8 * 2);
                float2 x2 = unpack<T>(pair);
                const float *s = k_scale + scale_head * DIM + column;
                pair = pack<T>(x2.x * s[0], x2.y * s[1]);
            }
            __syncthreads();
        }
        if constexpr (kQueryInRegisters) {
#pragma unroll
            for (int m = 0; m < kRowTiles; m++)
#pragma unroll
                for (int step = 0; step < kSteps; step++) fetch_query(query[m][step], q_tile, m, step);
        }
    }

    float key_scale = KEY_SCALE == kPerHead ? fmaxf(k_scale[scale_head], 1e-30f) : 1;  // not 0: -inf is multiplied too
    if constexpr (OUTLIERS == 0) scale *= key_scale;
    float scale_log2 = scale * kLog2E;
    for (int position = 0; position < steps; position++) {
        int key = warp_key + position * TILE_KV;
        wait_copies<2 * STAGES - 1>();
        __syncwarp();  // K_j is there for all lanes
        stamp(kArrived, position);
        multiply_scores<KEY>(w, query, q_tile, key_tile(position));
        if constexpr (KEY_SCALE == kPerToken) scale_columns(w, token_scales(position, 0));
        if constexpr (OUTLIERS > 0) {
            if constexpr (KEY_SCALE == kPerHead) scale_all(w, key_scale);
            multiply_outliers(w, outlier_query, outliers(position));
        }
        __syncwarp();  // all lanes have read K_j
        start_keys(position + STAGES);
        bool hides_end = key + kKeys > x.keys || (CAUSAL && key + kKeys > x.diagonal + 1);
        if (hides_end || (WINDOW && key <= x.tokens - 1 + x.diagonal - window))
            mask(w, token, x.keys - key, x.diagonal - key, window);
        online_softmax(w, scale_log2);
        wait_copies<2 * STAGES - 1>();
        __syncwarp();
        if constexpr (VALUE_SCALE == kPerToken)
            scale_columns(w, token_scales(position, KEY_SCALE == kPerToken));
        multiply_output<VALUE>(w, value_tile(position));
        __syncwarp();
        start_values(position + STAGES);
        stamp(kMultiplied, position);
    }
    wait_copies<0>();
    __syncthreads();  // from here on shared memory holds the warps' outputs, maxima and sums

    float *outputs = reinterpret_cast<float *>(shared), *maxima = outputs + WARPS * TILE_Q * kOutputPitch;
    float *totals = maxima + WARPS * TILE_Q;
    auto merged = [&](int r) {  // (maximum, sum) of row r over all warps
        float maximum = -CUDART_INF_F, total = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) maximum = fmaxf(maximum, maxima[i * TILE_Q + r]);
        float safe = safe_maximum(maximum);
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            total += totals[i * TILE_Q + r] * exp2_fast((maxima[i * TILE_Q + r] - safe) * scale_log2);
        return make_float2(maximum, total);
    };
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < kHalves; half++) {
            float total = lane_sum<4>(w.total[m][half]);
            if (lane % 4 == 0) {
                int r = warp * TILE_Q + m * 16 + half * 8 + lane / 4;
                maxima[r] = w.maximum[m][half], totals[r] = total;
            }
        }
    __syncthreads();
    put_output(outputs + warp * TILE_Q * kOutputPitch, w, rows, [&](int r) {
        float2 whole = merged(r);
        float weight = exp2_fast((maxima[warp * TILE_Q + r] - safe_maximum(whole.x)) * scale_log2);
        return weight * safe_inverse(whole.y);
    });
    __syncthreads();
    stamp(kReady);
    for (int i = threadIdx.x; i < rows * (DIM_V / 4); i += kThreads) {
        int r = i / (DIM_V / 4), column = i % (DIM_V / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int n = 0; n < WARPS; n++) {
            float4 part = *reinterpret_cast<float4 *>(outputs + (n * TILE_Q + r) * kOutputPitch + column);
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        if constexpr (VALUE_SCALE == kPerChannel || VALUE_SCALE == kPerHead) {
            constexpr int kEach = VALUE_SCALE == kPerChannel;
            const float *s = v_scale + (kEach ? scale_head * DIM_V + column : scale_head);
            sum.x *= s[0], sum.y *= s[kEach], sum.z *= s[2 * kEach], sum.w *= s[3 * kEach];
        }
        store_columns(o, x, heads, parts, r, column, sum);
    }
    if (threadIdx.x < rows) {
        float2 whole = merged(threadIdx.x);
        store_row(first, sums, x, heads, parts, threadIdx.x, whole.x * scale, whole.y);
    }
}
