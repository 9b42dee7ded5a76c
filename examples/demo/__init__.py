"""The demo: Spark writes a real data set into a cluster whose nodes are killed meanwhile, and reads it back."""
