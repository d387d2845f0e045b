// HDF5 1.10 reads past its own buffers when structures of a file are damaged: attribute messages,
// and chunks that inflate to fewer bytes than they should. The tests that flip bits look for
// mistakes of FDMA, so the sanitizers are told to pass over what is found inside libhdf5, and over
// what it loses.
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __asan_default_suppressions();
extern "C" const char* __asan_default_suppressions() { return "interceptor_via_lib:libhdf5\n"; }
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif
