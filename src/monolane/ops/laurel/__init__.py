"""A learned residual of low rank."""
