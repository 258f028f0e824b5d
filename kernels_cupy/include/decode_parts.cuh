// Which query rows and which part of the KV cache a decoding CTA works on: the grid of traces/decoding.py.
#pragma once

// a / b and a % b for a >= 0 and b > 0, which is mostly 1 where these are used: a division takes a hundred cycles or more,
// and until a CTA knows its part no copy starts.
__device__ __forceinline__ int quotient(int a, int b) {
    return b == 1 ? a : static_cast<unsigned>(a) / static_cast<unsigned>(b);
}
__device__ __forceinline__ int remainder(int a, int b) {
    return b == 1 ? 0 : static_cast<unsigned>(a) % static_cast<unsigned>(b);
}

struct DecodeGrid {
    int batch, heads, kv_heads, group;     // group: query heads per KV head
    int block_heads, block_tokens;         // query heads and tokens of a block of rows
    int group_blocks, token_blocks;        // blocks of the heads of a group, and of the longest sequence's tokens
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
    int number, rest;
    if (PartsSlowest) {
        int blocks = g.batch * g.kv_heads * g.group_blocks * g.token_blocks;
        x.part = quotient(cta, blocks), number = cta - x.part * blocks;
    } else {
        number = quotient(cta, g.parts), x.part = cta - number * g.parts;
    }
    rest = quotient(number, g.token_blocks);
    int token = (number - rest * g.token_blocks) * g.block_tokens;
    int group = quotient(rest, g.group_blocks), within = rest - group * g.group_blocks;
    x.sequence = quotient(group, g.kv_heads), x.kv_head = group - x.sequence * g.kv_heads;
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
    int part = g.part_keys ? g.part_keys : quotient((keys + TileKv - 1) / TileKv + g.parts - 1, g.parts) * TileKv;
    x.first = begin + x.part * part;
    x.keys = max(0, min(end, x.first + part) - x.first);
    x.diagonal = diagonal - x.first;
    return x;
}
