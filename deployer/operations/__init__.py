"""One file a verb; each reads as a story: what is wanted, what is there, the plan, the change, the outcome."""
