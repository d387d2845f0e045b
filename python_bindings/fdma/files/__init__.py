"""Masks in HDF5 files, by h5py."""
