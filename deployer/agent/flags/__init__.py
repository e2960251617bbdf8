"""The command-line flags of an installed SGLang, read from its source files: nothing of it is imported or run."""
