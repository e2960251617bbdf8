"""What the verb sample reads: GPUs, the journal, the engine's figures, the host; each source shows its own gaps."""
