// HDF5 1.10 reads past its own buffers when structures of a file are damaged: attribute messages,
// and chunks that inflate to fewer bytes than they should. The tests that flip bits look for
// defects of FDMA. The sanitizers therefore ignore errors and leaks inside libhdf5.
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __asan_default_suppressions();
extern "C" const char* __asan_default_suppressions() { return "interceptor_via_lib:libhdf5\n"; }
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif
