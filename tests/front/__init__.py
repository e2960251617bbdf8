"""The front with the real sglang-router, real systemd and stand-in engines."""
