// Marks functions that are compiled for host and device.
#pragma once

#ifdef __CUDACC__
#define FDMA_HOST_DEVICE __host__ __device__
#else
#define FDMA_HOST_DEVICE
#endif
