"""Frozen data: the inventory, profiles, releases, facts, plans and outcomes; and reading YAML into it."""
