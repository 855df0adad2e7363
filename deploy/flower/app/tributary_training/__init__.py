"""What Flower's runtime is sent: two names. The code is the package that every machine has installed by itself."""
