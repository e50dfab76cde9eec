"""What the wires are worth to one training job: the same script with and without them, in turn."""
