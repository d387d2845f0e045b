"""Masks of other libraries, and models of Hugging Face."""
