"""Per-layer embeddings: a layer reads what its token has for it in a table of its own."""
