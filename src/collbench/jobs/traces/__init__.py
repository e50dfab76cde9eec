"""What other tools recorded of a job's calls, as one job.

`formats.py` lists the formats and reads files; `kineto.py` and `torch_traces.py` make a Trace of what one rank wrote;
`folding.py` makes one job of the traces of its ranks. What a trace does not say stays unknown, and what cannot be read
as a call is counted, not guessed.
"""
