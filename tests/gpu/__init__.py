"""The real SGLang on real GPUs: what travels to a bare GPU machine, a lab host on that machine, and scenarios for it.

`python -m tests.gpu pack` builds what travels, `unpack` and `run SCENARIO` are for the GPU machine; README.md says how.
"""
