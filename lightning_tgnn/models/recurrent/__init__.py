"""Models of graphs that change in steps: graph convolutions and recurrent cells."""
