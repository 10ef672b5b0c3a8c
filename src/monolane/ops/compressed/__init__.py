"""Attention to a few keys as they are and to others that are compressed; see spec.py."""
