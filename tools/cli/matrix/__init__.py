"""Write the cells of overlays/matrix.yaml, check them, or print the memory that they need."""
