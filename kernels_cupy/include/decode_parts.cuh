// Which query rows and which part of the KV cache a decoding CTA works on: the grid of traces/decoding.py.
#pragma once

struct DecodeGrid {
    int batch, heads, group;               // group: query heads per KV head
    int block_heads, block_tokens;         // query heads and tokens of a block of rows
    int seq, seq_kv;                       // the longest sequence's
    int parts, part_keys;                  // parts of a block's keys; keys of each, 0 for parts of equally many steps
    int window;                            // 0: none
    const int *query_starts, *key_starts;  // rows of packed tensors where sequences start; null where all are alike
};

// Row r of the tile is token r % tokens of query head `head` + r / tokens.
struct DecodePart {
    int sequence, kv_head, part;
    int head, heads;        // query heads
    int tokens;             // query tokens of each; none past the end of a short sequence
    int first, keys;        // keys [first, first + keys) of the sequence
    int diagonal;           // token t sees key first + j for j up to t + diagonal
    int batch;              // entry of Q and O that holds the sequence: 0 where sequences are packed
    long long row, rows;    // row of its first token in that entry, and rows per entry
    long long k_row, k_rows;  // the same of the sequence's first key in a contiguous cache

    __device__ __forceinline__ int tile_rows() const { return heads * tokens; }
};

// `PartsSlowest`: all blocks' first parts come first; else a block's parts follow each other.
template <int TileKv, bool PartsSlowest, bool Causal>
__device__ __forceinline__ DecodePart decode_part(int cta, const DecodeGrid &g) {
    DecodePart x;
    int kv_heads = g.heads / g.group, per_group = (g.group + g.block_heads - 1) / g.block_heads;
    int blocks_of_rows = (g.seq + g.block_tokens - 1) / g.block_tokens;
    int blocks = g.batch * kv_heads * per_group * blocks_of_rows;
    int number = PartsSlowest ? cta % blocks : cta / g.parts;
    x.part = PartsSlowest ? cta / blocks : cta % g.parts;
    int token = number % blocks_of_rows * g.block_tokens, rest = number / blocks_of_rows;
    int within = rest % per_group;
    rest /= per_group;
    x.kv_head = rest % kv_heads, x.sequence = rest / kv_heads;
    x.head = x.kv_head * g.group + within * g.block_heads;
    x.heads = min(g.block_heads, g.group - within * g.block_heads);

    int seq = g.seq, seq_kv = g.seq_kv;
    if (g.query_starts) {
        int start = g.query_starts[x.sequence], k_start = g.key_starts[x.sequence];
        seq = g.query_starts[x.sequence + 1] - start, seq_kv = g.key_starts[x.sequence + 1] - k_start;
        x.batch = 0, x.row = start + token, x.rows = g.query_starts[g.batch];
        x.k_row = k_start, x.k_rows = g.key_starts[g.batch];
    } else {
        x.batch = x.sequence, x.row = token, x.rows = seq;
        x.k_row = 0, x.k_rows = seq_kv;
    }
    x.tokens = min(g.block_tokens, seq - token);

    int diagonal = token + seq_kv - seq, begin = 0, end = seq_kv;
    if (Causal) {
        end = min(seq_kv, max(0, diagonal + x.tokens));
        if (g.window) begin = max(0, diagonal + 1 - g.window);
    }
    int keys = max(0, end - begin);
    int part = g.part_keys ? g.part_keys : ((keys + TileKv - 1) / TileKv + g.parts - 1) / g.parts * TileKv;
    x.first = begin + x.part * part;
    x.keys = max(0, min(end, x.first + part) - x.first);
    x.diagonal = diagonal - x.first;
    return x;
}
