"""One flow trained by several sites: the grid, its rounds, and the runtime of Flower."""
