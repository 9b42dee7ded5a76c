"""Measurements.  Each has a tiny size, which runs with the tests, and a real size, which `./dev bench` runs."""
