"""What to run on the chosen devices: pure command and environment builders, and one exec."""
