"""The request-level core: pure; imports only schemas and the pure standard library."""
