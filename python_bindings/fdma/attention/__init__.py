"""Attention over masks in PyTorch, NumPy, CuPy and JAX; learned masks."""
