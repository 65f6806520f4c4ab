"""One module for each asset: its place in the graph and the few lines that run its stage."""
