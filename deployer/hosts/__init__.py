"""Reaching hosts: SSH connections made safe, and conversations with the agent that runs there."""
