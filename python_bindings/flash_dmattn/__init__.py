"""The mask names and helpers of FDMA's earlier versions, on top of package fdma."""
