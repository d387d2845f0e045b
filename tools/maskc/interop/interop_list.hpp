// The layouts of other systems, by name, ascending: one line each, no other file needs to know
// them. Included where FDMA_PEER(name) says what to do with each (interop_format.cpp).
FDMA_PEER(bsr)
FDMA_PEER(cu_seqlens)
FDMA_PEER(flash_mask)
FDMA_PEER(flex)
FDMA_PEER(hf_mask)
FDMA_PEER(hf_mask_additive)
FDMA_PEER(hf_padding)
