"""Samples and journal lines -> which GPU is which stage, how balanced they are, what that means; pure."""
