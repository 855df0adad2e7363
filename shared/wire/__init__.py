"""Wire protocol: messages, transport, rounds of a training, Flower's envelope."""
