// The interop layouts by name, ascending, one line each. No other file lists them.
// interop_format.cpp includes this file with FDMA_INTEROP(name) defined as what to do with each
// layout.
FDMA_INTEROP(bsr)
FDMA_INTEROP(cu_seqlens)
FDMA_INTEROP(dense)
FDMA_INTEROP(flash_mask)
FDMA_INTEROP(flex)
FDMA_INTEROP(hf_mask)
FDMA_INTEROP(hf_mask_additive)
FDMA_INTEROP(hf_padding)
