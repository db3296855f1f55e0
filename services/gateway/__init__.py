"""The client side: submit, follow and cancel over Kafka."""
