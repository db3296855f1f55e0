"""Traffic to try a deployment with, and what came of it. Reads trace files; touches no topic."""
