"""From a mask_mod, a Python function of (b, h, q, k), to an expression of the language."""
