"""The language of Headway: every message, validated and versioned; pure, no I/O."""
