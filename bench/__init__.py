"""Measurements, each with a tiny size that runs with the tests and a real one.  `./dev bench` runs the real ones."""
