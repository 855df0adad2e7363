"""How the two sides speak: messages, transport, rounds of a training, Flower's envelope."""
