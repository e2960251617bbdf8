"""The catalogue of source patches: what is wrong in which SGLang release, when it bites, and the change that cures it."""
