"""Coordinators: pure state machines, each on one partition of an internal topic."""
