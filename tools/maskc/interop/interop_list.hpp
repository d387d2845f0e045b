// The layouts of other systems, by name, ascending: one line each, no other file needs to know
// them. Included where FDMA_INTEROP(name) says what to do with each (interop_format.cpp).
FDMA_INTEROP(bsr)
FDMA_INTEROP(cu_seqlens)
FDMA_INTEROP(flash_mask)
FDMA_INTEROP(flex)
FDMA_INTEROP(hf_mask)
FDMA_INTEROP(hf_mask_additive)
FDMA_INTEROP(hf_padding)
