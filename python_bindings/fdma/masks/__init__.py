"""Masks: expressions, compiling, BlockMask, drawing."""
