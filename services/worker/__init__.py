"""The worker: continuous batching by KV budget, on real or simulated engines."""
