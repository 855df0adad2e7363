"""App that is sent to Flower's runtime: two names. The code is the package that is installed on every machine."""
