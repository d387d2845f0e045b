"""The names of the stored formats; test_block_mask.py compares them with those of the core."""

FORMATS = ("segment", "parametric", "bitset", "bcsr", "columns", "dense")
HOLD_ANY_CELLS = tuple(name for name in FORMATS if name != "parametric")
