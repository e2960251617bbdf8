"""deploy: puts SGLang services on multi-GPU hosts and switches them between parallelism profiles."""

__version__ = "0.1.0"
