"""Replacement policies, one per file, declared by what they do to a set in order of recency."""
