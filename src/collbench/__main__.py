"""`python -m collbench` is the same program as `collbench`."""

from collbench.cli import entry

if __name__ == "__main__":
    entry()
