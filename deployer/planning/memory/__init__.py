"""Pure: what a model takes on each GPU, and the KV cache that SGLang's own arithmetic leaves."""
