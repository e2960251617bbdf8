"""Journal lines and exit states -> cause, permanent or transient, hint. The rules are data (rules.yaml)."""
