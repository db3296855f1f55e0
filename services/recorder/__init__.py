"""The flight recorder: from Kafka into ClickHouse, exactly once."""
