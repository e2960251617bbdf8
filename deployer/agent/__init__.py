"""The part of deploy that runs on the host: standard library only, Python >= 3.8, imports nothing of the controller."""
