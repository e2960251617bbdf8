"""Warming a real host: real files on a real disk, real systemd, stand-in engines."""
