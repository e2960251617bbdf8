"""Pure: what a command would change, and what speaks against it, from the desired state and the host's facts."""
