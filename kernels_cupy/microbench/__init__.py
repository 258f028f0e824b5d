"""Micro-benchmarks that find out how the card is built: L2 partitions, request merging, CTA start times."""
