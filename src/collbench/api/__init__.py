"""What the commands do: typed functions, which Python users call as `collbench.NAME` (docs/python.md)."""
