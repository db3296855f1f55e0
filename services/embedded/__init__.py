"""The parts that a fresh machine lacks: a broker, a supervisor, free ports."""
