"""What runs: the cores, the worker, the recorder, the embedded parts and the command line."""
