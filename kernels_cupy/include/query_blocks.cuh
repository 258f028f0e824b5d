// Which rows and keys a CTA of FlashAttention's forward works on: the grid of traces/query_blocks.py.
#pragma once

enum CtaOrder { kMFastest, kHeadFastest, kLongestFirst, kSwizzled };
enum KvOrder { kForward, kBackward, kSawtooth };

struct Grid {
    int batch, heads, group;  // group: query heads per KV head
    int seq, seq_kv;          // the longest sequence's
    int splits, section;      // section: heads per section of the swizzled order
};

// Rows of the packed tensors where sequences start, one more than there are sequences; null where all are alike.
struct Starts {
    const int *queries, *keys;
};

struct Block {
    int b, h, number, split;
    int row, rows;         // first query row in its sequence, and rows from there to the sequence's end
    int first, last;       // keys in their sequence
    int diagonal;          // local row r sees keys up to first + r + diagonal
    long long q_row, k_row;  // rows of the tensors before this sequence's
    long long q_rows, k_rows;  // rows per (packed) batch entry
};

template <int TileQ, int TileKv, CtaOrder Order, bool Causal>
__device__ __forceinline__ Block block_of(int cta, const Grid &g, const Starts &starts, int window) {
    Block x;
    int q_blocks = (g.seq + TileQ - 1) / TileQ;
    if constexpr (Order == kMFastest) {
        x.number = cta % q_blocks, cta /= q_blocks;
        if (g.splits == 1) {
            x.split = 0, x.b = cta % g.batch, x.h = cta / g.batch;
        } else {
            x.split = cta % g.splits, cta /= g.splits;
            x.b = cta / g.heads, x.h = cta % g.heads;
        }
    } else {
        x.split = cta % g.splits, cta /= g.splits;
        int matrices = g.batch * g.heads, first = 0, together = matrices;
        if constexpr (Order == kSwizzled) {
            first = cta / (g.section * q_blocks) * g.section;
            together = min(g.section, matrices - first);
        }
        cta -= first * q_blocks;
        int matrix = first + cta % together;
        x.number = Order == kHeadFastest ? cta / together : q_blocks - 1 - cta / together;
        x.b = matrix / g.heads, x.h = matrix % g.heads;
    }
    int seq = g.seq, seq_kv = g.seq_kv;
    if (starts.queries) {
        x.q_row = starts.queries[x.b], x.k_row = starts.keys[x.b];
        seq = starts.queries[x.b + 1] - x.q_row, seq_kv = starts.keys[x.b + 1] - x.k_row;
        x.q_rows = starts.queries[g.batch], x.k_rows = starts.keys[g.batch];
        x.b = 0;
    } else {
        x.q_row = x.k_row = 0, x.q_rows = seq, x.k_rows = seq_kv;
    }
    x.row = x.number * TileQ, x.rows = seq - x.row;
    x.diagonal = x.row + seq_kv - seq;
    x.first = 0, x.last = seq_kv;
    if constexpr (Causal) {
        x.last = min(seq_kv, max(0, x.diagonal + min(TileQ, x.rows)));
        if (window) x.first = max(0, x.diagonal + 1 - window) / TileKv * TileKv;
    }
    if (g.splits > 1) {
        int part = ((seq_kv + TileKv - 1) / TileKv + g.splits - 1) / g.splits * TileKv;
        x.first = max(x.first, x.split * part), x.last = min(x.last, (x.split + 1) * part);
    }
    if (x.first >= x.last) x.first = x.last = 0;
    x.diagonal -= x.first;
    return x;
}

// Element 0 of head `h` of batch entry `b`, [b, h, rows, Cols] or, token-major, [b, rows, h, Cols].
template <int Cols, bool TokenMajor, class T>
__device__ __forceinline__ T *head_of(T *tensor, int b, int h, int heads, long long rows) {
    return tensor + (TokenMajor ? (b * rows * heads + h) * Cols : (static_cast<long long>(b) * heads + h) * rows * Cols);
}

// Elements between two rows of a head.
template <int Cols, bool TokenMajor>
__device__ __forceinline__ long long pitch_of(int heads) {
    return TokenMajor ? static_cast<long long>(heads) * Cols : Cols;
}
