"""A short convolution."""
