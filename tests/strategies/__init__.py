"""The downtime ladder on real hosts: systemd, the real sglang-router, the real deploy; only the engines are stand-ins."""
