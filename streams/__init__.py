"""Kafka and the cores: the owner shell, the edges and the derived streams."""
