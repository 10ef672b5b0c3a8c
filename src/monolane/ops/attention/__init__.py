"""Attention, with keys and values of its own or made of a latent."""
