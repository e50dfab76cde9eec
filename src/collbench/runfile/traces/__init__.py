"""What other tools wrote down of a job's calls, as one job.

`formats.py` lists them and reads files, one module for each format makes a Trace of what one rank wrote, and
`folding.py` makes one job of the traces of its ranks. What a trace does not say stays unknown, and what cannot be read
as a call is counted, not guessed.
"""
